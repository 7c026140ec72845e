// Where the data comes from: the server behind the page, or blocks within the file itself.

import { Facts } from "./columns.js";

async function fetched(path, options = {}) {
  const answer = await fetch(path, options);
  if (answer.ok) return answer;
  let told = "";
  try {
    told = await answer.text();
    told = JSON.parse(told).error;
  } catch {
    // What is no JSON is the sentence itself.
  }
  throw new Error(told || `the server answered ${answer.status}`);
}

async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const answer = await fetched(path, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
    signal,
  });
  return answer.json();
}

/** Data and models of the server that this page came from. */
class ServerSource {
  canAsk = true;
  #kept = new Map();

  #once(key, make) {
    if (!this.#kept.has(key)) {
      const made = make();
      this.#kept.set(key, made);
      made.catch(() => this.#kept.delete(key));
    }
    return this.#kept.get(key);
  }

  #json(path) {
    return this.#once(path, async () => (await fetched(path)).json());
  }

  about() {
    return this.#json("api/runs");
  }

  facts(run) {
    return this.#once(`columns ${run}`, async () => {
      const answer = await fetched(`api/columns/${run}`);
      return new Facts(await answer.arrayBuffer());
    });
  }

  known(run, relation) {
    return this.#json(`api/facts/${run}?relation=${encodeURIComponent(relation)}`);
  }

  compare(runs) {
    return this.#json(`api/compare?runs=${runs.join(",")}`);
  }

  diff(one, other) {
    return this.#json(`api/diff?runs=${one},${other}`);
  }

  ask(question, signal) {
    return post("api/ask", question, signal);
  }

  template(question, signal) {
    return post("api/template", question, signal);
  }

  predict(question, signal) {
    return post("api/predict", question, signal);
  }

  words(question, signal) {
    return post("api/words", question, signal);
  }

  /** Call back with a run's progress until it ends; return what stops it. */
  live(run, told) {
    const stream = new EventSource(`api/live/${run}`);
    stream.onmessage = (event) => told(JSON.parse(event.data));
    stream.addEventListener("end", () => stream.close());
    return () => stream.close();
  }
}

/** Data that stands in the file. */
class FileSource {
  canAsk = false;
  #about;
  #facts = new Map();

  constructor(block) {
    this.#about = JSON.parse(block.textContent);
  }

  async about() {
    return this.#about;
  }

  facts(run) {
    if (!this.#facts.has(run)) this.#facts.set(run, this.#read(run));
    return this.#facts.get(run);
  }

  async #read(run) {
    const text = document.getElementById(`columns-${run}`).textContent;
    const bytes = Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Facts(await new Response(plain).arrayBuffer());
  }

  async known() {
    return {};
  }

  async compare(runs) {
    const found = this.#about.compare;
    const wanted = new Set(runs.map(String));
    return { ...found, runs: found.runs.filter((own) => wanted.has(own.name)) };
  }

  async diff(one, other) {
    const turned = other < one;
    const found = this.#about.diffs[turned ? `${other}-${one}` : `${one}-${other}`];
    if (!found) return null;
    if (found.error) throw new Error(found.error);
    if (!turned) return found;
    const turn = (own) => ({
      ...own,
      first_alone: own.second_alone,
      second_alone: own.first_alone,
    });
    return { ...found, all: turn(found.all), groups: found.groups.map(turn) };
  }

  live(run, told) {
    told(this.#about.live[run]);
    return () => {};
  }
}

/** Return the file's own data if there are some, else the server's. */
export function openSource() {
  const block = document.getElementById("about");
  return block ? new FileSource(block) : new ServerSource();
}
