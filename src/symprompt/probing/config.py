"""What a probing run is made from: facts, a prompt, a method, how it learns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from symprompt.config import (
    Amount,
    Common,
    Count,
    EpochLearningConfig,
    Incidental,
    ModelRunConfig,
    Positive,
    Rate,
    Seed,
    Several,
    build,
    load,
    settings,
)
from symprompt.errors import ConfigError
from symprompt.probing.methods import METHODS, MethodName


@settings
class FactsConfig:
    """Which facts, and which answers are allowed."""

    layout: Literal["auto", "lama", "bear", "table", "world"] = "auto"
    """The data's layout; auto looks."""
    relations: Common[Several[str]] = ()
    """Only these relations; empty takes all."""
    templates: str = ""
    """File or folder of manual templates; empty looks beside the data."""
    wording: Count = 1
    """Which of a relation's manual templates is its manual one, where the data has several (BEAR
    has three); 0: all of them, each as a relation of its own (P36.1, P36.2, P36.3)."""
    columns: Several[str] = ()
    """Names of columns in a table of your own, as subject=company object=city (and relation, split,
    template); without a relation all facts are of one, called as the file."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """skip: leave rows of a file that cannot be used out and count them; refuse: name them."""
    vocabulary: str = "full"
    """Allowed answers: full (every token), objects (the relation's answer space where the data has
    one, as BEAR has, otherwise what its training facts have), or the path of a word list, one word
    a line."""
    objects: Literal["one-token", "any-length"] = "one-token"
    """any-length: objects may be several tokens, and are ranked among the relation's objects
    (vocabulary = "objects", see above) and the names of a list, if one is given; a line of it is a
    name, or a relation, a tab and a name."""
    copies: Literal["auto", "on", "off"] = "on"
    """Whether a fact's subject may itself be its answer. auto: only in relations with a training
    fact whose object is its subject. Where it may not, a true object that is the subject comes
    last."""
    words: Literal["auto", "all"] = "all"
    """auto: with the full vocabulary only whole words are answers (no pieces of words, bytes,
    special tokens, punctuation), but in relations with a training object that is no word all are;
    all: every token."""
    uhn: bool = False
    """Leave out test facts whose object is named in the subject (LAMA-UHN's string filter)."""
    strict: bool = False
    """Stop at a fact whose object is not one allowed token, instead of counting it as dropped."""
    skip_unusable: bool = False
    """Leave relations out that cannot be used (no facts in a split that the method needs, one
    possible answer alone, no template it could be asked by), name and count them; otherwise the run
    refuses."""
    split_seed: Seed = 0
    """Seed of the split where the data has none or shares are given, and of what the three limits
    below draw."""
    shares: Several[Count] = ()
    """Percent of each relation's subjects in train, dev and test: all facts are dealt anew, also
    where the data has a split. Empty keeps that, and is 60 20 20 where there is none, 40 20 40 for
    BEAR. 0 0 100 asks all facts, by a method that learns nothing, among the objects of all."""
    train_limit: Count = 0
    """Most training facts of a relation; those beyond are left out and counted. 0 takes all."""
    dev_limit: Count = 0
    """Most dev facts of a relation; 0 takes all."""
    test_limit: Count = 0
    """Most test facts of a relation; 0 takes all."""


@settings
class PromptConfig:
    """The template and what makes its vectors."""

    template: Common[str] = "<3> [X] <3> [Y] <3>"
    """<n> learned vectors, [X] the subject, [Y] the object, words are anchors; "manual" takes each
    relation's manual template. For causal models [Y] is last, and manual ones are cut after it."""
    encoder: Literal["free", "mlp", "bilstm"] = "bilstm"
    """free: the vectors are parameters; mlp, bilstm: they come out of a small network."""
    start: Literal["random", "manual"] = "random"
    """manual: free vectors in the shape of the relation's manual template, which takes the place of
    the template above, start from its words' embeddings. A search starts from its words, or from
    masks (random)."""
    lstm_hidden: Annotated[int, Field(ge=-1)] = 0
    """LSTM size per direction; 0 is half the model's embedding width, -1 all of it."""


@settings
class MethodConfig:
    """The method; then what the subject prompt (SPE) takes, and last objects of several tokens."""

    name: Common[MethodName] = "spe"
    """The method; lpaqa, majority and manual learn no vectors, autoprompt searches for words,
    finetune learns weights."""
    object_prompts: Positive = 1
    """Prompts that ask for the object (ptuning, optiprompt, spe); the log-probabilities that they
    give are averaged. Each starts, learns and has its best epoch by itself; training and asking for
    the object take so many times as long."""
    k: Common[Positive] = 15
    """How many candidates are re-ranked (equation 8); also how many are stored. A relation with
    fewer answers has all of them."""
    within: Amount = 0.0
    """Re-rank of these K only those whose object score is at most this far below the first one's (a
    difference of log-probabilities); 0 takes all K. Few remain where the answer is clear, many
    where it is not."""
    weight: Amount = 0.8
    """Weight of the subject score when re-ranking (lambda in equation 10)."""
    train_weight: Amount = 0.8
    """Weight of the subject loss in training (lambda in equation 7)."""
    masking: Literal["one", "chain", "whole"] = "one"
    """Mask the subject one token at a time, each token together with those after it, or all of it
    at once; causal models mask nothing, for them "one" and "chain" are each token given those
    before it."""
    average: Literal["log", "probability", "sum"] = "log"
    """Subject score: mean of its tokens' log-likelihoods, log of their mean likelihood, or sum of
    log-likelihoods (longer subjects then weigh more)."""
    second: Literal["none", "one", "chain", "whole"] = "none"
    """A second subject prompt, with vectors of its own, that masks the subject in this other way;
    the fit weighs its score as a further term. Asking back takes as long again, but hardly longer
    with "whole", as facts share its sentences."""
    third: Literal["none", "one", "chain", "whole"] = "none"
    """A third one likewise."""
    blanks: Literal["swapped", "kept"] = "swapped"
    """swapped: in the subject prompt the object fills the first blank (equation 4)."""
    vectors: Literal["shared", "separate"] = "shared"
    """One set of vectors for both directions (the paper), or one for each."""
    choose_weight: Literal["fixed", "dev", "dev-relation", "dev-fit"] = "fixed"
    """Where the re-ranking weight comes from: as given, best dev MRR for all or per relation, or a
    fit on dev that weighs ``terms`` and uses them no further than held-out facts gain by them."""
    terms: Several[Literal["subject", "frequency", "copy", "prior"]] = (
        "subject",
        "frequency",
        "copy",
    )
    """What the fit weighs beside the object score: the subject score, how frequent an object is in
    training, whether it is the subject itself, and the template prior, the object score where the
    subject is masked (masked models). Without a subject prompt the others alone."""
    evidence: Literal["dev", "cross"] = "dev"
    """What the weight or the fit is chosen on. cross: on dev facts, and on training facts that are
    asked by prompts which did not see them: prompts are trained again on all training facts but one
    fold, for each fold; training takes cross_folds times as long."""
    cross_folds: Annotated[int, Field(ge=2)] = 2
    """Into how many folds the training facts are parted for that."""
    object_masking: Literal["name", "word", "one"] = "name"
    """Objects of several tokens: mask the token asked for and what follows it in the name, what
    follows it in its word, or it alone; causal models mask nothing."""
    object_average: Literal["mean", "sum"] = "mean"
    """Score of an object of several tokens: mean or sum of their log-likelihoods."""

    @property
    def further(self) -> tuple[Literal["one", "chain", "whole"], ...]:
        """How the subject prompts beside the first mask."""
        return tuple(own for own in (self.second, self.third) if own != "none")

    @property
    def fitted(self) -> tuple[str, ...]:
        """The terms of the fit of a run that asks back."""
        return (*self.terms, *("second", "third")[: len(self.further)])

    @property
    def weighs_prior(self) -> bool:
        """Whether the template prior is a term of the fit."""
        return self.choose_weight == "dev-fit" and "prior" in self.terms


@settings
class LearningConfig(EpochLearningConfig):
    """How the vectors are learned. Every relation keeps its own clock, clip and best epoch."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """adam adds weight decay to the gradient (L2); adamw shrinks the weights."""
    weight_decay: Amount = 0.0
    """Weight decay."""
    clip: Amount = 0.0
    """Largest gradient norm per relation; 0 does not clip."""
    schedule: Literal["constant", "exponential", "linear"] = "exponential"
    batch: Common[Positive] = 8
    """Facts per relation and step."""
    drop_last: bool = True
    """Leave out an epoch's last, smaller batch (unless it is the only one)."""
    epochs: Common[Count] = 20
    """Most passes over the training facts; of a search, see search.steps."""
    select: Literal["p@1", "mrr", "loss"] = "mrr"
    """Dev score of the object prompt that chooses each relation's best epoch; ties take the later
    epoch. Separate vectors for the subject prompt are chosen by their own dev loss."""
    model_dropout: bool = False
    """Train with the language model's own dropout on, as the P-tuning code does."""


@settings
class SearchConfig:
    """How words are searched (autoprompt); batch, epochs, patience and select stand in learning."""

    steps: Positive = 5
    """Replacements tried in each relation's prompt in one epoch; dev is scored after an epoch."""
    candidates: Positive = 10
    """Words tried in the place of one, the best by the gradient."""
    filters: bool = True
    """Never take capitalised words or the relation's training objects; special tokens never are."""


@settings
class EnsembleConfig:
    """Several manual templates per relation (lpaqa, softprompt), and how answers are mixed."""

    prompts: Several[str] = ()
    """Folders (P36.jsonl, ... with a template a line) or JSONL files (relation, template) of
    manual templates; empty looks beside the data for prompts/trex_mine and trex_paraphrase."""
    with_manual: bool = True
    """The relation's manual template is one of the prompts, the first."""
    combine: Literal["top1", "uniform", "optimised"] = "optimised"
    """For lpaqa. top1: the prompt with the best P@1 on train; uniform: all weigh the same;
    optimised: the weights that make the training objects most likely."""
    mixture: Literal["log", "probability"] = "log"
    """What lpaqa averages over prompts: log-probabilities (the paper), or probabilities."""
    most: Count = 0
    """Most prompts of a relation; those with the best P@1 on train are taken. 0 takes all."""
    weighing: Literal["em", "gradient"] = "em"
    """How softprompt learns its prompts' weights: em sets them to the prompts' mean share in the
    training objects' likelihood, after each epoch; gradient learns them like the vectors."""
    deep: bool = False
    """Let softprompt also move the hidden states of the prompt before every layer."""


@settings
class TuningConfig:
    """Which weights are learned; concerns finetune alone."""

    tune: Literal["full", "lora"] = "full"
    """full: every weight, a copy for each relation; lora: low-rank adapters of linear layers."""
    lora_rank: Positive = 8
    """Rank of the adapters."""
    lora_alpha: Rate = 16.0
    """Adapters count alpha / rank."""
    lora_targets: Several[str] = ()
    """Last parts of the names of the layers with adapters, as in "query"; empty takes every linear
    layer but the one onto the vocabulary."""
    save_weights: bool = False
    """Store each relation's weights, so that the run can be asked; adapters are always stored."""
    at_once: Incidental[Count] = 0
    """Relations trained in one stack; 0 takes as many as half of a GPU's memory, or 2 GiB, hold.
    Prompts too are trained in such groups on a GPU that cannot hold the encoders of all."""


def model_dtype(method: str, dtype: str) -> str:
    """Return the dtype a run's model is loaded in: some methods want one on any device."""
    return METHODS[method].dtype or dtype if dtype == "auto" else dtype


@settings
class RunConfig(ModelRunConfig):
    """One run: a model, facts, a method. Flags override the config file."""

    data: Common[str] = "world"
    """Folder or file of facts, or "world" for the facts about countries and cities."""
    seed: Common[Seed] = 34
    """Seed of vectors and shuffling."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16 or float64."""
    max_tokens: Incidental[Count] = 0
    """Most tokens in one pass through the model; 0 chooses by device. Bounds memory."""
    keep_encoder: Incidental[bool] = True
    """Store the prompt encoder too, so that training can go on from the run."""
    start_from: Common[str] = ""
    """A finished run whose prompts training goes on from."""
    rerank: str = ""
    """A finished SPE run on the same model and facts, whose subject prompt re-ranks the candidates;
    masking, average, blanks, vectors, weight and choose_weight are then that run's, and evidence is
    dev: it has seen all training facts."""
    facts: FactsConfig = FactsConfig()
    prompt: PromptConfig = PromptConfig()
    method: MethodConfig = MethodConfig()
    ensemble: EnsembleConfig = EnsembleConfig()
    learning: LearningConfig = LearningConfig()
    search: SearchConfig = SearchConfig()
    tuning: TuningConfig = TuningConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not go together."""
        name, traits, prompt = self.method.name, METHODS[self.method.name], self.prompt
        if self.facts.objects == "any-length":
            if self.facts.vocabulary == "full":
                raise ConfigError(
                    'facts.objects = "any-length" ranks names among candidates, and '
                    'facts.vocabulary = "full" has single tokens only; use "objects" (the training '
                    "objects of each relation), or name a file of further candidates."
                )
            if not traits.any_length:
                able = ", ".join(other for other, own in METHODS.items() if own.any_length)
                raise ConfigError(
                    f'method.name = "{name}" asks for objects of one token; with facts.objects = '
                    f'"any-length" use one of: {able}.'
                )
        for place, own in (("second", self.method.second), ("third", self.method.third)):
            if own == "none":
                continue
            for key, why in {
                f'method.name = "{name}"': not traits.subject_prompt and not self.rerank,
                'method.vectors = "shared"': self.method.vectors == "shared",
                f'method.choose_weight = "{self.method.choose_weight}"': (
                    self.method.choose_weight != "dev-fit"
                ),
                f'method.masking = "{self.method.masking}"': own == self.method.masking,
                f'method.second = "{self.method.second}"': (
                    place == "third" and self.method.second in ("none", own)
                ),
            }.items():
                if why:
                    raise ConfigError(
                        f'method.{place} = "{own}" is a {place} subject prompt of spe, with '
                        "vectors of its own, masked in another way than the others and weighed by "
                        f'the fit; it does not go with {key}. Use method.name = "spe", vectors = '
                        '"separate", choose_weight = "dev-fit" and another masking.'
                    )
        if self.method.object_prompts > 1:
            if not traits.object_prompts:
                able = ", ".join(other for other, own in METHODS.items() if own.object_prompts)
                raise ConfigError(
                    f"method.object_prompts is {self.method.object_prompts}, and method.name = "
                    f'"{name}" learns no prompts to be averaged; use one of: {able}.'
                )
            if prompt.start == "manual":
                raise ConfigError(
                    f"method.object_prompts is {self.method.object_prompts}, and prompt.start = "
                    '"manual" would make all of them the same; use "random".'
                )
        if self.method.evidence == "cross":
            for key, why in {
                'method.choose_weight = "fixed"': self.method.choose_weight == "fixed",
                "learning.epochs = 0": self.learning.epochs == 0,
                "start_from": bool(self.start_from),
                f'method.name = "{name}"': not traits.vectors,
            }.items():
                if why:
                    raise ConfigError(
                        'method.evidence = "cross" trains prompts anew that do not see a part of '
                        f'the training facts, which does not go with {key}; use "dev".'
                    )
        if prompt.start == "manual" and not traits.vectors:
            raise ConfigError(
                'prompt.start = "manual" makes learned vectors of a manual template, and '
                f'method.name = "{name}" learns none; drop one of the two.'
            )
        if traits.dtype and self.dtype in ("bfloat16", "float16"):
            raise ConfigError(
                f"dtype is {self.dtype}, in which small changes of weights vanish; method.name = "
                f'"{name}" goes with float32, float64 or auto.'
            )
        if self.start_from and not traits.vectors:
            raise ConfigError(
                f'start_from goes on from learned vectors, and method.name = "{name}" has none; '
                "drop one of the two."
            )
        if traits.encoder and prompt.encoder != traits.encoder:
            raise ConfigError(
                f'method.name = "{name}" goes with prompt.encoder = "{traits.encoder}", not '
                f'"{prompt.encoder}"; with that encoder the method is "ptuning".'
            )
        if prompt.start == "manual" and prompt.encoder != "free":
            raise ConfigError(
                f'prompt.start = "manual" goes with prompt.encoder = "free", not '
                f'"{prompt.encoder}".'
            )


def load_config(name: str) -> RunConfig:
    """Load a shipped config by name, or a TOML file by path.

    Raises:
        ConfigError: no such config, not TOML, an unknown key or a bad value.

    Example:
        >>> load_config("lama-ptuning").method.name
        'ptuning'
    """
    return load(RunConfig, name)


def make_config(table: dict[str, Any]) -> RunConfig:
    """Build a config from nested plain values, refusing unknown keys and bad values.

    Example:
        >>> make_config({"method": {"name": "ptuning"}, "seed": 7}).seed
        7
    """
    return build(RunConfig, table)
