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

  /** Compute ranks of some facts from scores; equal to those stored at the run's own settings. */
  compute({ k, scale, filtered }, from = 0, to = this.count) {
    const { k: wide, object_score: scores, known, place: places, relation } = this;
    const first = Math.min(k, wide);
    const before = this.before(filtered);
    const better = new Int32Array(to - from);
    const equal = new Int32Array(to - from);
    const weights = this.weights(scale);
    const terms = this.terms.map((term) => this["term/" + term]);
    const joint = new Float32Array(first);
    for (let row = from; row < to; row++) {
      const start = row * wide;
      const place = places[row];
      if (place < 0 || place >= first) {
        const leading = Math.min(this.tied(row, first, filtered), before.equal[row]);
        better[row - from] = before.better[row] + leading;
        equal[row - from] = before.equal[row] - leading;
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
      let higher = 0;
      let same = 0;
      for (let i = 0; i < first; i++) {
        if (joint[i] < gold || i === place || (filtered && known[start + i])) continue;
        if (joint[i] > gold) higher++;
        else same++;
      }
      better[row - from] = higher;
      equal[row - from] = same;
    }
    return new Ranks(better, equal);
  }

  /** The rank of one fact after re-ranking. */
  rankOf(row, settings) {
    if (!this.reranked || this.isOwn(settings)) return this.after(settings).at(row);
    return this.compute(settings, row, row + 1).at(0);
  }

  /** Have the browser compile the ranking while nothing else is to do, before the first move. */
  prepare(times = 12) {
    if (!this.reranked || this.ready || !window.requestIdleCallback) return;
    if (times === 1) this.ready = true;
    const part = Math.min(this.count, 4000);
    requestIdleCallback(() => {
      this.compute({ k: this.k, scale: 1, filtered: false }, 0, part);
      if (times > 1) this.prepare(times - 1);
    });
  }

  /** How many of the first candidates tie with a right object behind them, and now lead. */
  tied(row, first, filtered) {
    const start = row * this.k;
    const place = this.place[row];
    const from = this.k - this.level[row];
    let count = 0;
    for (let i = first - 1; i >= 0; i--) {
      // They are the last ones, as the best come first.
      const ties =
        place < 0 ? i >= from : this.object_score[start + i] === this.object_score[start + place];
      if (!ties) break;
      if (!(filtered && this.known[start + i])) count++;
    }
    return count;
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
    if (!this.kept) {
      const { better, equal } = this;
      this.kept = new Float64Array(better.length);
      for (let row = 0; row < better.length; row++)
        this.kept[row] = better[row] + equal[row] / 2 + 1;
    }
    return this.kept;
  }
}

/** Return P@1, P@10 and MRR in percent, as means over relations and over facts. */
export function summarise(facts, ranks, rows = null) {
  const { all } = ranks;
  const { relation } = facts;
  const flat = new Float64Array(4 * facts.relations.length);
  const count = rows ? rows.length : facts.count;
  for (let i = 0; i < count; i++) {
    const row = rows ? rows[i] : i;
    const rank = all[row];
    const at = 4 * relation[row];
    if (rank <= 1) flat[at]++;
    if (rank <= 10) flat[at + 1]++;
    flat[at + 2] += 1 / rank;
    flat[at + 3]++;
  }
  const sums = facts.relations.map((_, at) => [...flat.subarray(4 * at, 4 * at + 4)]);
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
