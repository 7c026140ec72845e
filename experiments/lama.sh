#!/usr/bin/env bash
# LAMA-34k: manual prompts, P-tuning and SPE over three seeds, and the papers' own settings.
#   MODEL=<model folder> DATA=<folder with P*/{train,dev,test}.jsonl> experiments/lama.sh [RUNS]
# Finished runs are not done again; stop it and start it as you like.
set -euo pipefail
runs=${1:-runs/lama}
train() { symprompt train "$1" --model "$MODEL" --data "$DATA" --out "$runs/$2" --resume "${@:3}"; }

train lama-manual manual
for seed in 34 35 36; do
  train lama-ptuning "ptuning-$seed" --seed "$seed"
  train lama-spe "spe-$seed" --seed "$seed"
done
train lama-ptuning ptuning-20-epochs --epochs 20
train lama-ptuning-paper ptuning-paper
train lama-spe-paper spe-paper

seeds() { printf '%s/%s-34,%s/%s-35,%s/%s-36' "$runs" "$1" "$runs" "$1" "$runs" "$1"; }
python "$(dirname "$0")/compare.py" --name lama34k --base ptuning --note "${NOTE:-$MODEL}" \
  "manual=$runs/manual" "ptuning=$(seeds ptuning)" "spe=$(seeds spe)" \
  "ptuning-20-epochs=$runs/ptuning-20-epochs" \
  "ptuning-paper=$runs/ptuning-paper" "spe-paper=$runs/spe-paper"
