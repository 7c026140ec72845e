"""The flags of every command; what a config has is a flag too and not repeated here."""

from __future__ import annotations

from typing import Literal

from symprompt.cluster.machine import Jobs
from symprompt.config import (
    Amount,
    Common,
    Count,
    Different,
    OfRun,
    Positional,
    Positive,
    Rate,
    Seed,
    Several,
    settings,
)
from symprompt.probing.config import FactsConfig

# ------------------------------------------------------------------- what several commands have


@settings
class DeviceFlag:
    """Where to compute."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


@settings
class MovedModel:
    """The model of a run."""

    model: str = ""
    """Where the model is now, if it moved since the run was made."""


@settings
class Model:
    """A model that is read."""

    model: str = "shipped"
    """Folder or hub name of a masked or causal language model."""


@settings
class Pool:
    """What has a vector, and how it is made."""

    pool: Literal["first", "mean", "text-mean", "text-cls", "text-last"] = "mean"
    """Of words: the first sub-token, or the mean of all. Of whole texts: the mean of the tokens
    (text-mean), the [CLS] token (text-cls; masked models), or the last token (text-last; causal
    models); a text longer than a window has the mean of its windows."""


@settings
class WordNet:
    """Which WordNet."""

    wordnet: str = ""
    """Folder of WordNet 3.0's files, or wn:NAME (wn:omw-en:1.4) for a lexicon of the package wn;
    empty looks where Debian's packages put the files, then in wn."""


@settings
class SenseRules:
    """How a sense is chosen."""

    rule: Literal["nearest", "fitted"] = "fitted"
    """nearest: the cosine alone (equation 11.9). fitted: how often a sense occurs counts too, as
    fits held-out documents of the tagged text."""
    coverage: Literal["seen", "relations"] = "seen"
    """relations reaches senses without occurrences through WordNet; else the first sense is taken
    for lemmas without any."""
    discourse: bool = False
    """Give a lemma one sense in each document, or text."""


@settings
class JsonFlag:
    """How to print."""

    json: bool = False
    """Print JSON instead of a table."""


@settings
class MaxTokens:
    """How much at once."""

    max_tokens: Count = 0
    """Most tokens in one pass through the model; 0 chooses by device."""


@settings
class ResumeFlag:
    """A config, and whether its run goes on."""

    config: Positional[str]
    """A TOML file, or the name of a config that ships."""
    resume: Common[bool] = False
    """Go on with an unfinished run; its results are those of an unbroken one."""


@settings
class StreamFlags(Jobs):
    """How a file of any size is answered."""

    overwrite: bool = False
    """Write --out even if the file is there; start anew where a broken run had other settings."""
    dry_run: bool = False
    """With --out: print the shards that --jobs and --on would make, with times by those done."""


# ------------------------------------------------------------------------------ commands


@settings
class TrainFlags(ResumeFlag):
    """Train a method on all relations in one run, evaluate it and write a run folder."""


@settings
class PretrainFlags(ResumeFlag):
    """Train a masked language model on running text; write a transformers folder.

    From scratch, or with --model from a trained one: all its weights, or with --weights.layers the
    last layers and the head.

    Several GPUs, or machines with --nnodes; killed, it goes on with any number of processes:

      torchrun --nproc-per-node 8 -m symprompt.cli pretrain CONFIG ... --resume
    """

    text: Common[Several[str]] = ()
    """Text files or folders: UTF-8 text, documents parted by blank lines, or JSON lines with a
    "text"; .gz, .xz, .bz2 too. de=FILE says that a file is in language de."""
    prepare_only: bool = False
    """Learn the vocabulary and tokenise the text, write both to OUT and stop; runs take them with
    --prepared OUT, so that several of them tokenise once."""


@settings
class TuneFlags(ResumeFlag):
    """Train a prompt, adapters or all weights on a labelled task; write a run folder.

    A config with a pattern answers a SuperGLUE task through it: tune CONFIG --help has its flags.

    Files of your own: texts with a label (my-labels), two texts with a label (my-pairs), words with
    tags (my-tags), questions (my-questions). A pair may be a paraphrase or none, a premise and what
    it entails or contradicts, a sentence and one that does or does not follow it:

      symprompt tune my-pairs --data paraphrase.tsv --columns label=same --out paraphrase
      symprompt tune my-pairs --data nli.jsonl --columns first=premise second=hypothesis --out nli
      symprompt tune my-pairs --data next.csv --columns first=0 second=1 label=2 --out coherence
    """


@settings
class PredictFlags(StreamFlags, DeviceFlag, MovedModel, JsonFlag, MaxTokens):
    """Predict for the examples of a file, or for texts, with what a run of tune has learned.

    Of a run through a pattern the seed that did best on dev answers.
    """

    run: Positional[OfRun[str]]
    """Run folder of tune, or the name of such a run on the hub."""
    file: Positional[str] = ""
    """Your examples: JSON lines, CSV, TSV, text or CoNLL columns; labels are taken if there are.
    - reads standard input: a text, or JSON, in each line; texts of a pair are parted by a tab."""
    text: Several[str] = ()
    """Texts to predict for, in place of a file; for pairs and questions two texts each."""
    columns: Several[str] = ()
    """Names of columns in your file, as text=review or label=stars, where they are neither those of
    training nor well known; of a run through a pattern they are its task's, as premise=text."""
    probabilities: bool = False
    """Give the probabilities of all classes."""
    out: str = ""
    """File to write: .csv, .parquet (needs pyarrow), else JSON lines; without it the first
    predictions are shown. Tables and lines of text are streamed: any size, in constant memory, gone
    on with by the same command after a kill, bad rows listed by line in OUT.bad.jsonl."""
    dtype: str = "auto"
    """auto (bfloat16 on CUDA, else float32), float32 or bfloat16."""


@settings
class AskFlags(StreamFlags, DeviceFlag, JsonFlag):
    """Ask a finished run, or any model by a template, for the object of a subject or vice versa.

    Without a run: symprompt ask --model M --template "The capital of [X] is [Y] ." --subject France

    Any number of questions, in constant memory, gone on with by the same command after a kill:

      symprompt ask RUN --file questions.csv --out answers.jsonl --top 1

    questions.csv has columns relation (unless the run has one) and subject or object: a row with a
    subject asks for its objects, one with an object alone for its subjects. Rows that cannot be
    asked are listed by line in answers.jsonl.bad.jsonl.
    """

    run: Positional[OfRun[str]] = ""
    """Run folder, or the name of a run on the hub (owner/name, owner/name@revision); none to ask by
    --template."""
    model: str = ""
    """Folder or hub name of the model to ask by --template ("shipped" if none is named); of a run,
    where its model is now, if it moved since."""
    template: str = ""
    """A sentence with [X] for the subject and [Y] for the object, to ask a model without a run."""
    relation: str = ""
    """Relation to ask about, as the run names it; may be left out if the run has one."""
    subject: str | None = None
    """Rank objects for this subject by object, subject and joint score. Only the run's first K are
    re-ranked by the subject prompt; those beyond follow in the order of the object prompt."""
    object: str | None = None
    """Rank the known subjects for this object, by the subject prompt. Their score is the mean over
    a subject's tokens, also where the run sums them, so that long names do not lose by length."""
    file: str = ""
    """Ask many questions: a text file with a subject in each line, or a .csv, .tsv or .jsonl file
    with a column subject; with --out also with columns relation and object."""
    columns: Several[str] = ()
    """What that file calls its columns, as subject=company."""
    want: Literal["", "objects", "subjects"] = ""
    """With --out: ask for the objects of every row's subject, or for the subjects of its object,
    where rows have both."""
    out: str = ""
    """Write the answers to --file's questions here: .jsonl (a line for each question), .csv or
    .parquet (a line for each answer; Parquet needs pyarrow)."""
    top: Positive = 10
    """How many answers."""
    words: bool = False
    """By --template: answer with whole words alone, and not with the subject itself; a run answers
    as it was trained (facts.copies, facts.words)."""


@settings
class RerankFlags(DeviceFlag, MovedModel, MaxTokens):
    """Re-rank the stored candidates of any finished run by an SPE run's subject prompts.

    Both runs must be of the same model and facts. In one go: train CONFIG --rerank SPE_RUN.
    """

    run: Positional[OfRun[str]]
    """Run folder of any method, or the name of a run on the hub."""
    with_: OfRun[str]
    """Run folder of spe, whose subject prompts score the candidates, or its name on the hub."""
    out: str
    """Run folder to write."""
    k: Count = 0
    """Re-rank this many of the stored candidates; 0 takes all."""
    choose_weight: Literal["", "fixed", "dev", "dev-relation", "dev-fit"] = ""
    """Where the re-ranking weight comes from; empty does as the spe run does."""


@settings
class ExportFlags(DeviceFlag, MovedModel, JsonFlag):
    """Write what a run has learned so that others load it without symprompt.

    To peft: prompts of train (ptuning, optiprompt, spe) as one adapter of trainable tokens, both
    directions of all relations, with the tokenizer, a card and a script; of tune the prefix (pt2,
    with --prefix.shift-positions), adapters (lora) or vectors (pt) as an adapter, with the head.
    symprompt import makes a run of the folder again, so the run's data and predictions go with it.

    To onnx: a run of tune on texts or pairs with classes, of an encoder, as one graph with its
    tokenizer, a card and a script; it is run beside torch before it is written. Needs the extra:
    pip install symprompt[onnx].

    To parquet: the run's records and its predictions, a file for each split.
    """

    run: Positional[OfRun[str]]
    """Run folder, or the name of a run on the hub."""
    folder: Positional[str]
    """Folder to write."""
    to: Literal["peft", "onnx", "parquet"]
    """What is written."""


@settings
class PushFlags(DeviceFlag, MovedModel, JsonFlag):
    """Put a run on the hub of huggingface, so that others ask it by its name.

      symprompt push runs/spe me/capitals --dry-run
      symprompt push runs/spe me/capitals
      symprompt ask me/capitals --relation P36 --subject Luxembourg

    What is sent is the folder of symprompt export --to peft with its card; a run that peft cannot
    express is sent as it is, and the reason is said. Facts and predictions of the run go with it;
    paths of this machine do not. The token comes from HF_TOKEN or from hf auth login.
    """

    run: Positional[str]
    """Run folder of train, rerank or tune."""
    name: Positional[str]
    """Where to: owner/name."""
    dry_run: bool = False
    """List the files and their sizes, and send nothing; no server is asked for anything."""
    private: bool = False
    """Only its owner sees it; without it everybody does, unless the owner is an organisation whose
    default is otherwise."""
    revision: str = ""
    """A branch to put it on, made if it is not there; none is main."""
    overwrite: bool = False
    """Take the place of what is there under this name; git keeps that."""
    base: str = ""
    """What the run's model is called on the hub, if the run has it from a folder; without it others
    name theirs with --model."""


@settings
class ImportFlags:
    """Make a run of a folder that symprompt export --to peft wrote, to ask, compare and re-rank.

    Of one on the hub, too, which ask, table and others also read by its name alone.

    The vectors are the adapter's: one that was trained further with peft is asked with what it
    learned, and has no figures until it is measured anew.
    """

    folder: Positional[str]
    """The exported folder, or its name on the hub (owner/name, owner/name@revision)."""
    out: str
    """Run folder to write."""
    model: str = ""
    """Where the model is on this machine, if not where the run was made."""


@settings
class SampleFlags:
    """Which facts are asked."""

    facts: Count = 50
    """Most facts of each relation, drawn by --seed, the same of every run; 0 takes all."""
    split: Literal["test", "dev"] = "test"
    """Whose facts."""
    seed: Seed = 0
    """Of the draw."""
    draws: Positive = 1000
    """Bootstrap draws."""


@settings
class CoherencyFlags(DeviceFlag, MovedModel, JsonFlag, MaxTokens, SampleFlags):
    """Measure coherency: how often a run recovers the subject from the object it answers itself.

    The first object by the run's own order, right or wrong, is put into the subject prompt, which
    ranks the relation's known subjects; P@1 and MRR of the true one are stored in the run, for
    symprompt table --coherency. A relation takes up to distinct objects x known subjects x their
    tokens sentences. Runs that can ask back: of spe, or re-ranked by one (symprompt rerank).
    """

    runs: Positional[OfRun[Several[str]]]
    """Run folders, or names of runs on the hub."""


@settings
class ConsistencyFlags(DeviceFlag, MovedModel, JsonFlag, SampleFlags):
    """Measure consistency: how often runs give a fact the same first answer in other words.

    Facts are asked by every rewording of their relation's template. Manual templates are replaced
    by it; learned vectors keep their places around the blanks, and its words join them there.
    Shown are the share of pairs of rewordings that agree (ParaRel's consistency), P@1 of a
    rewording, how many facts are right in every one, and how often the answer is that of the run's
    own prompt. A relation takes facts x rewordings sentences, more where candidates are re-ranked.

      symprompt consistency runs/manual runs/spe --templates $DATA/pararel/pattern_data/graphs_json
      symprompt consistency runs/manual runs/spe --templates $DATA/paratrex
    """

    runs: Positional[OfRun[Several[str]]]
    """Run folders, or names of runs on the hub; others are compared with the first."""
    templates: Several[str] = ()
    """Folders with a RELATION.jsonl for each relation, a template a line ("template", or ParaRel's
    "pattern"), or JSONL files (relation, template); none takes those that BEAR's facts bring."""
    by: Literal["run", "relation"] = "run"
    """relation adds rows for each relation, with intervals."""
    forward: bool = False
    """Add a row with each re-ranked run's first answers by the object prompt alone."""


@settings
class PromptsFlags(MovedModel, JsonFlag):
    """Show a run's prompts: the words nearest to each learned vector, and the vectors' norms."""

    run: Positional[OfRun[str]]
    """Run folder, or the name of a run on the hub."""
    relations: Several[str] = ()
    """Only these relations; empty takes all."""
    top: Positive = 5
    """How many words of each vector."""
    by: Literal["cosine", "euclidean"] = "cosine"
    """Nearness to the input embeddings: cosine (larger is nearer) or distance (smaller is)."""
    device: str = "cpu"
    """auto, cpu, cuda, cuda:N or mps."""


@settings
class TableFlags(JsonFlag):
    """Compare runs: P@1, P@10, MRR, with intervals and paired differences to one of them."""

    runs: Positional[OfRun[Several[str]]]
    """Run folders, or names of runs on the hub; or results stored as JSON, by reproduce or in
    experiments/results."""
    baseline: OfRun[str] = ""
    """The run that the others are compared with, one of those given or a further one; empty takes
    the first. Runs whose facts differ are compared on those that both have."""
    by: Literal["run", "relation"] = "run"
    """relation adds rows for each relation, with intervals."""
    split: str = ""
    """Which split: dev or test of facts; of a labelled task another one that it was evaluated on.
    Empty takes test, and of a labelled task what it reports."""
    ranks: Literal["realistic", "optimistic", "pessimistic"] = "realistic"
    """How ties count."""
    filtered: bool = False
    """Show filtered ranks alone, which leave other true objects of the same subject out; without it
    they stand beside raw ones where they differ."""
    forward: bool = False
    """Add a row with each re-ranked run's order by the object prompt alone."""
    coherency: bool = False
    """Add how often the subject is recovered from the run's own first object, and its MRR, of runs
    that can ask back; measured by symprompt coherency RUN."""
    k: Count = 0
    """Re-rank this many of the stored candidates; 0 takes all."""
    weight: Amount | None = None
    """Re-rank with this weight instead of each run's own."""
    draws: Positive = 1000
    """Bootstrap draws."""
    format: Literal["text", "markdown", "csv", "latex", "json"] = "text"
    """How to print: a terminal table; Markdown; CSV, all rows in one table, intervals in columns of
    their own; LaTeX (with booktabs); JSON, all that was measured, as --json does."""
    html: str = ""
    """Also write the tables, with a figure of runs on facts, as one HTML page to this file."""
    figure: str = ""
    """Also draw runs, with their intervals, to this file: .png, .svg or .pdf."""


@settings
class DiffFlags(JsonFlag):
    """Show which facts one run knows and another does not: two models, two methods, two trainings.

    Counts, a sign test, each relation, and examples, all from stored predictions. Runs of tune are
    compared by example.
    """

    first: Positional[OfRun[str]]
    """Run folder, or the name of a run on the hub."""
    second: Positional[OfRun[str]]
    """Another one; only facts that both have are compared."""
    top: Positive = 1
    """A fact is known if the right object is among the first so many."""
    split: str = ""
    """dev or test of facts; of a labelled task what predictions are stored of (through a pattern: a
    seed). Empty takes test, and of a labelled task what it reports."""
    ranks: Literal["realistic", "optimistic", "pessimistic"] = "realistic"
    """How ties count."""
    filtered: bool = False
    """Leave other true objects of the same subject out of the ranks and answers."""
    examples: Count = 5
    """Most examples of each side, from all relations in turn."""
    out: str = ""
    """File to write every fact to that one run alone knows: .jsonl or .csv."""


@settings
class RunsFlags(JsonFlag):
    """List the runs below a folder: what made them, their state, main figure and size.

    Jobs of reproduce and sweep that are not done are listed too: waiting, running and how far,
    stopped, or failed and why.
    """

    folder: Positional[str] = "."
    """Folder that holds runs, however deep."""


@settings
class UpgradeFlags(JsonFlag):
    """Convert runs that an earlier version of symprompt made to the present format, in place.

    Each file is written beside and then takes the old one's place, the manifest last; after a kill
    the same command goes on. Unfinished runs are left alone: --resume of the command that made them
    writes the present format. Runs of a newer version are refused.
    """

    folder: Positional[str]
    """A run folder, or a folder that holds runs, however deep."""
    dry_run: bool = False
    """Say what would change, and change nothing."""


@settings
class PageFlags(DeviceFlag, MovedModel):
    """Look at runs in a browser: ask them, compare them, every fact before and after asking back.

    The page is served to this machine alone, under an address with a random token, and sends no
    request elsewhere. Models are loaded when they are first asked. Needs the extra: pip install
    symprompt[page].
    """

    runs: Positional[Several[str]]
    """Run folders of any command, finished or in training, or folders that hold such; and models:
    their folders, or shipped."""
    export: str = ""
    """Write the page with its data as one .html file, which opens without a server, and stop."""
    corpus: Several[str] = ()
    """Text files or folders in which the view Words looks for a word's occurrences."""
    port: Count = 0
    """Where to serve; 0 takes any port that is free."""
    browser: bool = True
    """Open the page in a browser; --no-browser prints its address alone."""


@settings
class ServeFlags(DeviceFlag, MovedModel):
    """Answer questions and predict over HTTP, for this machine alone, until Ctrl-C.

    Runs of train are asked and runs of tune predict, JSON in and out, each called by its folder's
    name; that may be left out where one run can be meant. The address that is printed ends in a
    token:

      symprompt serve runs/spe runs/tickets --port 8000
      export ADDRESS=http://127.0.0.1:8000/TOKEN
      curl $ADDRESS/health
      curl $ADDRESS/ask -d '{"questions": [{"relation": "P36", "subject": "France"}], "top": 3}'
      curl $ADDRESS/predict -d '{"run": "tickets", "inputs": ["My invoice is wrong."]}'

    A question with an object alone asks for its subjects. A row that cannot be answered has its
    error in its place. What waits is answered in one batch, whoever asked. A request has at most
    256 rows and 1 MiB. Needs the extra: pip install symprompt[page].
    """

    runs: Positional[OfRun[Several[str]]]
    """Finished run folders of train and tune, or names of runs on the hub."""
    port: Count = 0
    """Where to serve; 0 takes any port that is free."""
    token_file: str = ""
    """File with the token, so that the address stays the same: read if it is there, else written,
    for you alone. Without it the token is a new one each time."""
    batch: Positive = 256
    """Most rows that the model gets at once."""
    waiting: Positive = 256
    """Most requests that wait; further ones are refused with status 503."""
    seconds: Amount = 30.0
    """Longest that a request may take, waiting included, before it is refused with status 503; 0 is
    for ever."""
    rate: Rate = 1000.0
    """Most requests a second; further ones are refused with status 429."""


@settings
class CheckFlags(JsonFlag):
    """Report what was read, what was dropped and why, what leaks, and the majority baseline."""

    source: Positional[str]
    """Folder or file of facts, or "world"."""
    facts: FactsConfig = FactsConfig()
    model: str = "shipped"
    """A model whose tokenizer decides which objects are one token; "" keeps all."""


@settings
class DataExportFlags(JsonFlag):
    """Write the facts of any source as one Parquet file, which --data takes again.

    Columns: relation, subject, object, split, template. Pandas, polars and the datasets library
    read it; facts that the source has twice in a split stand there twice.
    """

    source: Positional[str]
    """world, a LAMA folder, BEAR's, or a table of your own."""
    out: Positional[str]
    """The .parquet file to write."""
    to: Literal["parquet"]
    """What is written."""
    facts: FactsConfig = FactsConfig()


@settings
class VocabularyFlags(JsonFlag):
    """Write the words that are one token of several models, to compare them on the same answers.

    Use the file as --vocabulary of train and data check: it restricts facts and answers.
    """

    models: Different[str]
    """Folders or hub names of two or more models."""
    out: str
    """File to write, one word a line."""
    data: str = ""
    """Folder or file of facts, or "world", whose facts left are counted and objects looked at."""


@settings
class DemoFlags:
    """Compare manual prompts, P-tuning and SPE on facts about the world, and draw the figures."""

    out: str = "demo"
    """Folder for the runs and figures; each model and setting gets one of its own in it."""
    model: str = "shipped"
    """Folder or hub name of a masked language model; "shipped" is the one in the package."""
    page: bool = False
    """Show the runs in a browser in the end, as symprompt page does."""


@settings
class EmbedFlags(DeviceFlag, Model, Pool, MaxTokens):
    """Write a contextual vector of every word of every text, or of every text, into a folder.

    OUT/vectors.npy [words, h] can be memory-mapped by numpy; OUT/words.npy says where each word
    stands (text, first character, character after the last, sub-tokens), OUT/texts.jsonl holds the
    texts. With --pool text-mean, text-cls or text-last a vector is of a whole text, its only word.
    Long texts are read in windows that overlap by half. Interrupted, the same command goes on where
    it was.
    """

    text: Positional[Several[str]]
    """Text files or folders: UTF-8 text, documents parted by blank lines, or JSON lines with a
    "text"; .gz, .xz, .bz2 too. de=FILE says that a file is in language de."""
    out: str
    """Folder to write."""
    layers: str = "last"
    """last, mean-last-4, sum-last-4 (or another number than 4), or the number of one layer."""
    by: Literal["document", "line"] = "document"
    """What a text is, a word's context too: a document, or each line by itself."""
    window: Count = 0
    """Tokens of a window; 0 takes as many as the model reads."""
    dtype: Literal["float16", "float32"] = "float16"
    """Of the stored vectors."""


@settings
class SimilarityFlags(DeviceFlag, JsonFlag):
    """Compare words where they stand, or whole texts, by the cosine of their vectors.

    Of words, one is marked in each text: symprompt similarity "the [die] is cast" "they [die]
    young". Of texts: symprompt similarity --pool text-mean "It is cold ." "It is icy .". --pairs
    compares the pairs of a file; --among finds the nearest to a text, or to its word.
    """

    texts: Positional[Several[str]] = ()
    """Two or more texts (one is enough with --among), each with one word in brackets if words are
    compared."""
    pairs: str = ""
    """A .jsonl, .csv or .tsv file with the columns first and second; with a column score too (how
    alike people find them), its rank correlation with the cosines is given."""
    columns: Several[str] = ()
    """What that file calls its columns, as first=question1 score=gold."""
    among: Several[str] = ()
    """Where to look for the nearest: text files, whose lines (or words) are compared, or a folder
    that embed wrote. de=FILE says that a file is in language de."""
    top: Positive = 10
    """How many neighbours, or lines of pairs, to show; --json has all pairs."""
    model: str = ""
    """Folder or hub name of a masked or causal language model; empty takes that of the vectors in
    --among, or the shipped one."""
    layers: str = ""
    """last, mean-last-4, sum-last-4 (or another number than 4), or the number of one layer; empty
    takes those of the vectors in --among, or last."""
    pool: Literal["", "first", "mean", "text-mean", "text-cls", "text-last"] = ""
    """Of words: the first sub-token, or the mean of all. Of whole texts: the mean of the tokens
    (text-mean), the [CLS] token (text-cls; masked models), or the last token (text-last; causal
    models). Empty takes that of the vectors in --among, or mean."""
    standardise: str = ""
    """A standardiser's file, made by: symprompt isotropy. Without one all cosines are high."""
    figure: str = ""
    """File to draw the cosines of the texts to: .png, .svg or .pdf."""


@settings
class IsotropyFlags(DeviceFlag, Model, Pool, JsonFlag):
    """Measure how much all vectors of words, or of texts, point one way, and standardise them.

    The expected cosine of two random words (of two lines with --pool text-mean), layer by layer,
    before and after subtracting each dimension's mean and dividing by its deviation, which are
    fitted on one text and measured on another; the dimensions that make it (rogue ones); and
    cosines by word frequency. OUT holds the results, a picture, and standardisers for symprompt
    similarity.
    """

    text: Positional[Several[str]]
    """Text files or folders to fit on."""
    measure: Several[str]
    """Other text files or folders to measure on."""
    out: str
    """Folder to write."""
    limit: Count = 100_000
    """Most words of each text, in lines drawn from all over it; 0 takes all."""
    seed: Seed = 0
    """Of the draw."""


@settings
class SensesTrainFlags(DeviceFlag, Model, WordNet):
    """Make sense vectors: the mean of each sense's occurrences in tagged text (SemCor)."""

    corpus: Positional[str]
    """SemCor's folder of context files (WordNet 3.0 senses), or a NAME.data.xml with gold keys."""
    out: str
    """Folder to write. An interrupted training goes on there."""
    layers: str = "sum-last-4"
    """last, mean-last-4, sum-last-4 (or another number than 4), or the number of one layer."""
    pool: Literal["first", "mean"] = "mean"
    """A word's first sub-token, or the mean of all of them."""
    standardise: bool = False
    """Standardise the vectors first, fitted on the tagged words."""


@settings
class SensesEvaluateFlags(DeviceFlag, MovedModel, WordNet, JsonFlag, SenseRules):
    """Score the five standard test sets by F1, against the most frequent sense of the same text."""

    senses: Positional[str]
    """Folder that senses train wrote."""
    data: str
    """Folder of the test sets: NAME/NAME.data.xml and NAME/NAME.gold.key.txt."""
    sets: Several[str] = ()
    """Only these sets, such as semeval2007 to choose settings on; empty takes those there."""
    out: str = ""
    """JSON file to write the scores to."""
    figure: str = ""
    """File to draw the scores to: .png, .svg or .pdf."""
    draws: Positive = 10_000
    """Bootstrap draws."""


@settings
class SensesTagFlags(DeviceFlag, MovedModel, WordNet, JsonFlag, SenseRules):
    """Tag every content word of a text with its WordNet sense, gloss and confidence."""

    senses: Positional[str]
    """Folder that senses train wrote."""
    text: Positional[str]
    """The text; or, with --file, a file whose lines are texts."""
    file: bool = False
    """TEXT names a UTF-8 file, one text a line."""


@settings
class SensesMapFlags(DeviceFlag, WordNet):
    """Draw a word's occurrences in the plane: a picture (PNG) and a page with hover text (HTML)."""

    word: Positional[str]
    """The word; several forms parted by commas: die,dies,died."""
    corpus: Several[str]
    """Text files or folders to look for it in; de=FILE says that a file is in language de."""
    out: str = ""
    """Where to write, without ending; empty takes the word. Makes OUT.png and OUT.html."""
    colour: Literal["sense", "cluster", "language"] = "cluster"
    """sense (needs --senses), cluster (of the vectors) or language (as given with the corpus; says
    how often the nearest occurrence has the same)."""
    senses: str = ""
    """Folder that senses train wrote; its model and layers are taken."""
    model: str = ""
    """Folder or hub name of the model; empty takes that of --senses, or the shipped one."""
    layers: str = ""
    """Empty takes those of --senses, or sum-last-4 as far as the model has layers."""
    clusters: Positive = 3
    """How many clusters."""
    most: Positive = 1000
    """Most texts with the word; more are drawn from evenly."""
    seed: Seed = 0
    """Of the draw, the clusters and the projection."""


@settings
class ConfigsFlags:
    """List the configs that ship, or print one."""

    name: Positional[str] = ""
    """The config to print; without it all are listed."""


@settings
class ExamplesFlags:
    """Write small example files to try commands on: facts, texts with labels, tags, questions."""

    folder: Positional[str]
    """Folder to write; it must be new or empty."""
