// A run's test facts as typed arrays, and ranks for any K and weight from them.

const ARRAYS = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i2: Int16Array,
  f4: Float32Array,
};
const MISSING = 65535;

/** Return a column of the block as a typed array; others are those before it. */
function unpack(buffer, offset, about, others) {
  const size = Number(about.type.slice(1));
  const count = about.shape.reduce((one, other) => one * other, 1);
  const kind = ARRAYS[about.type];
  if (!kind) throw new Error(`unknown type of column ${about.type}`);
  let found = new kind(buffer, offset + about.start, count);
  if (about.planes) {
    // Bytes of one significance stand together, the lowest first.
    const bytes = new Uint8Array(buffer, offset + about.start, count * size);
    const joined = new Uint8Array(count * size);
    for (let byte = 0; byte < size; byte++) {
      const start = byte * count;
      for (let i = 0; i < count; i++) joined[i * size + byte] = bytes[start + i];
    }
    found = new kind(joined.buffer);
  }
  if (about.falling) {
    // The first of a row as it is below the top, the others below the one before.
    const wide = about.shape[1];
    for (let i = 0; i < count; i++) found[i] = (i % wide ? found[i - 1] : 0) - found[i];
  }
  if (about.low === undefined) return found;
  const span = about.high - about.low || 1;
  const scores = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    scores[i] = found[i] === MISSING ? -Infinity : about.low + (found[i] / (MISSING - 1)) * span;
  }
  return about.pairs ? spread(scores, others) : scores;
}

/** Give values that stand once for each relation and candidate to all of them. */
function spread(values, { relation, candidates, k }) {
  const places = new Map();
  const found = new Float32Array(candidates.length);
  for (let i = 0; i < candidates.length; i++) {
    const pair = relation[Math.floor(i / k)] * 4294967296 + candidates[i];
    let place = places.get(pair);
    if (place === undefined) {
      place = places.size;
      places.set(pair, place);
    }
    found[i] = values[place];
  }
  return found;
}

/** A run's facts: columns by name, texts, relations with their weights. */
export class Facts {
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const note = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    this.count = note.facts;
    this.k = note.k;
    this.exact = note.exact;
    this.askedBack = note.asked_back;
    this.reranked = note.reranked;
    this.relations = note.relations;
    this.terms = note.terms;
    this.texts = note.texts;
    for (const about of note.columns) this[about.name] = unpack(buffer, 4 + length, about, this);
    this.relationRows = note.relations.map(() => []);
    for (let i = 0; i < this.count; i++) this.relationRows[this.relation[i]].push(i);
  }

  /** What a fact is called: relation, subject and object, to find it in another run. */
  key(row) {
    const relation = this.relations[this.relation[row]].name;
    return [relation, this.texts[this.subject[row]], this.texts[this.object[row]]].join("\u0000");
  }

  /** The weight of each term in each relation, in single precision as the run computes. */
  weights(scale) {
    if (this.scaled?.scale !== scale) {
      const each = (term) =>
        Float32Array.from(this.relations, (own) =>
          Math.fround((own.weights[term] ?? 0) * (term === "subject" ? scale : 1)),
        );
      this.scaled = { scale, weights: this.terms.map(each) };
    }
    return this.scaled.weights;
  }

  /** Whether these settings are the run's own, whose ranks are stored. */
  isOwn({ k, scale }) {
    return k >= this.k && scale === 1;
  }

  /** Ranks by object score alone. */
  before(filtered = false) {
    const end = filtered ? "_filtered" : "";
    return new Ranks(this["before_better" + end], this["before_equal" + end]);
  }

  /** Ranks after re-ranking the first k candidates with the subject's weight scaled. */
  after(settings) {
    const end = settings.filtered ? "_filtered" : "";
    if (!this.reranked) return this.before(settings.filtered);
    if (this.isOwn(settings))
      return new Ranks(this["after_better" + end], this["after_equal" + end]);
    return this.compute(settings);
  }

  /** Compute ranks from scores; equal to the stored ones at the run's own settings. */
  compute({ k, scale, filtered }) {
    const { count, k: wide, object_score: scores, known, place: places, relation, level } = this;
    const first = Math.min(k, wide);
    const before = this.before(filtered);
    const better = new Int32Array(count);
    const equal = new Int32Array(count);
    const weights = this.weights(scale);
    const terms = this.terms.map((term) => this["term/" + term]);
    const joint = new Float32Array(first);
    for (let row = 0; row < count; row++) {
      const start = row * wide;
      const place = places[row];
      if (place < 0 || place >= first) {
        // Candidates that tie with a right object behind them now lead; they are the last ones.
        const tied = (i) =>
          place < 0 ? i >= wide - level[row] : scores[start + i] === scores[start + place];
        let leading = 0;
        for (let i = first - 1; i >= 0 && tied(i); i--) {
          if (!(filtered && known[start + i])) leading++;
        }
        leading = Math.min(leading, before.equal[row]);
        better[row] = before.better[row] + leading;
        equal[row] = before.equal[row] - leading;
        continue;
      }
      for (let i = 0; i < first; i++) joint[i] = scores[start + i];
      for (let term = 0; term < terms.length; term++) {
        const weight = weights[term][relation[row]];
        if (weight === 0) continue;
        const own = terms[term];
        for (let i = 0; i < first; i++) joint[i] += Math.fround(weight * own[start + i]);
      }
      const gold = joint[place];
      let [higher, same] = [0, 0];
      for (let i = 0; i < first; i++) {
        if (joint[i] < gold || i === place || (filtered && known[start + i])) continue;
        if (joint[i] > gold) higher++;
        else same++;
      }
      better[row] = higher;
      equal[row] = same;
    }
    return new Ranks(better, equal);
  }

  /** The candidate that comes first, as a place among them. */
  firstAnswer(row, { k, scale }) {
    if (!this.reranked || this.isOwn({ k, scale })) return this.first[row];
    const weights = this.weights(scale);
    const relation = this.relation[row];
    let best = 0;
    let highest = -Infinity;
    for (let i = 0; i < Math.min(k, this.k); i++) {
      const at = row * this.k + i;
      const total = this.jointAt(at, relation, weights);
      if (total > highest) {
        highest = total;
        best = i;
      }
    }
    return best;
  }

  /** One candidate's joint score. */
  jointAt(at, relation, weights) {
    let total = this.object_score[at];
    for (let term = 0; term < this.terms.length; term++) {
      const weight = weights[term][relation];
      if (weight === 0) continue;
      total = Math.fround(total + Math.fround(weight * this["term/" + this.terms[term]][at]));
    }
    return total;
  }
}

/** How many others score higher than the right object, and how many the same. */
export class Ranks {
  constructor(better, equal) {
    this.better = better;
    this.equal = equal;
  }

  /** The mean of winning and losing every tie. */
  at(row) {
    return this.better[row] + this.equal[row] / 2 + 1;
  }

  /** The same of all facts, as one array. */
  get all() {
    this.kept ??= Float64Array.from(this.better, (own, row) => own + this.equal[row] / 2 + 1);
    return this.kept;
  }
}

/** Return P@1, P@10 and MRR in percent, as means over relations and over facts. */
export function summarise(facts, ranks, rows = null) {
  const all = ranks.all;
  const sums = facts.relations.map(() => [0, 0, 0, 0]);
  const count = rows ? rows.length : facts.count;
  for (let i = 0; i < count; i++) {
    const row = rows ? rows[i] : i;
    const rank = all[row];
    const own = sums[facts.relation[row]];
    if (rank <= 1) own[0]++;
    if (rank <= 10) own[1]++;
    own[2] += 1 / rank;
    own[3]++;
  }
  const there = sums.filter((own) => own[3]);
  const mean = (values) => values.reduce((one, other) => one + other, 0) / (values.length || 1);
  const over = (metric) => ({
    relations: 100 * mean(there.map((own) => own[metric] / own[3])),
    facts: (100 * there.reduce((sum, own) => sum + own[metric], 0)) / (count || 1),
  });
  return { p1: over(0), p10: over(1), mrr: over(2), relations: sums };
}

/** Return [row of one run, row of another] of the facts that both have; repeats in turn. */
export function pairFacts(one, other) {
  const places = new Map();
  for (let row = other.count - 1; row >= 0; row--) {
    const key = other.key(row);
    const own = places.get(key);
    if (own) own.push(row);
    else places.set(key, [row]);
  }
  const pairs = [];
  for (let row = 0; row < one.count; row++) {
    const found = places.get(one.key(row));
    if (found && found.length) pairs.push([row, found.pop()]);
  }
  return pairs;
}
