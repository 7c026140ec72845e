// Ask: a subject's objects, or an object's subjects, by object, subject and joint score.

import { choice, h, nothing, number, pick, put, s, shownRank } from "./dom.js";
import { rerankSliders, settingsOf } from "./settings.js";

const LISTED = 2000;

/** Make the bars of answers; items: [{text, object, subject, joint, right}], first `ranked` joint. */
export function answerTable(items, { title, back, chosen, plain, note }) {
  const there = (key) => items.some((own) => own[key] !== undefined);
  const columns = [["object", plain ? "log-probability" : "object", plain ? "" : " score"]];
  for (const key of ["subject", "joint"]) if (there(key)) columns.push([key, key, " score"]);
  const range = columns.map(([key]) => {
    const values = items.map((own) => own[key]).filter(Number.isFinite);
    return [Math.min(...values), Math.max(...values)];
  });
  const cell = (item, key, [low, high]) => {
    const value = item[key];
    if (!Number.isFinite(value)) return h("td", { class: "score empty" }, "–");
    const share = high > low ? 6 + (94 * (value - low)) / (high - low) : 100;
    const bar = s("rect", { width: `${share}%`, height: "100%", rx: 3 });
    const drawn = s("svg", { class: `bar ${key}`, "aria-hidden": "true" }, bar);
    return h("td", { class: "score" }, h("span", { class: "value" }, number(value)), drawn);
  };
  const rows = items.map((item, place) => {
    const turn = h(
      "button",
      { type: "button", class: "answer", title: back(item.text), onclick: () => chosen(item.text) },
      item.text,
    );
    const mark = item.right ? h("span", { class: "right" }, "✓ right") : null;
    const name = h("th", { scope: "row" }, turn, mark);
    const rank = h("td", { class: "place" }, String(place + 1));
    const scores = columns.map(([key], at) => cell(item, key, range[at]));
    return h(
      "tr",
      { class: item.right ? "is-right" : null, "data-key": item.text },
      rank,
      name,
      scores,
    );
  });
  const heads = columns.map(([key, text, more]) => {
    const swatch = h("i", { class: `swatch ${key}` });
    return h(
      "th",
      { scope: "col", class: "score" },
      swatch,
      text,
      h("span", { class: "wide" }, more),
    );
  });
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "#"),
    h("th", { scope: "col" }, "answer"),
    heads,
  );
  const table = h("table", { class: "answers" }, h("caption", {}, title), h("thead", {}, head));
  table.append(h("tbody", {}, rows));
  return h("div", { class: "card" }, table, note ? h("p", { class: "caption quiet" }, note) : null);
}

/** Put a new table in place of the old one; rows that moved glide there. */
function glide(old, fresh, place) {
  const before = new Map();
  if (old) {
    for (const row of old.querySelectorAll("tr[data-key]")) {
      before.set(row.dataset.key, row.getBoundingClientRect().top);
    }
  }
  put(place, fresh);
  if (!old || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const row of fresh.querySelectorAll("tr[data-key]")) {
    const from = before.get(row.dataset.key);
    const moved = from === undefined ? 0 : from - row.getBoundingClientRect().top;
    if (moved) {
      const frames = [{ transform: `translateY(${moved}px)` }, { transform: "none" }];
      row.animate(frames, { duration: 180, easing: "ease-out" });
    }
  }
}

/** Return a template with its subject and object as marked names. */
function sentence(template, subject, object) {
  const parts = template.replace(/<\d+>/g, "…").split(/(\[X\]|\[Y\])/);
  const shown = parts.map((part) => {
    if (part === "[X]") return h("mark", { class: subject ? "given" : "asked" }, subject || "?");
    if (part === "[Y]") return h("mark", { class: object ? "given" : "asked" }, object || "?");
    return part;
  });
  return h("p", { class: "sentence" }, shown);
}

/** Return how the joint score is made, with the weights of now. */
function formula(weights, scale) {
  const parts = Object.entries(weights).map(([term, own]) => {
    const weight = own * (term === "subject" ? scale : 1);
    return ` ${weight < 0 ? "−" : "+"} ${number(Math.abs(weight))} × ${term}`;
  });
  const about = {
    second: "second: the subject score of the second subject prompt",
    third: "third: the subject score of the third subject prompt",
    frequency: "frequency: log of the object's share of the training facts",
    copy: "copy: 1 where the answer is the subject itself",
    prior: "prior: the object score where the subject is masked",
  };
  const told = Object.keys(weights).flatMap((term) => about[term] ?? []);
  return `joint score = object${parts.join("")}${told.length ? "; " + told.join("; ") : ""}`;
}

/** Joint scores of items for a K and a scale, best first; those beyond K follow by object score. */
export function rankItems(items, weights, { k, scale }) {
  const asked = items.filter((own) => own.terms).slice(0, k);
  const rest = items.filter((own) => !asked.includes(own));
  const names = Object.keys(weights);
  const scored = asked.map((own) => {
    let joint = Math.fround(own.object);
    for (const term of names) {
      const weight = Math.fround(weights[term] * (term === "subject" ? scale : 1));
      if (weight !== 0) joint = Math.fround(joint + Math.fround(weight * (own.terms[term] ?? 0)));
    }
    return { ...own, subject: own.terms.subject, joint };
  });
  scored.sort((one, other) => other.joint - one.joint);
  return [...scored, ...rest];
}

/** Answers that a run stored for a subject; null if it has none. */
function storedObjects(facts, relation, subject) {
  const rows = facts.relationRows[relation].filter(
    (row) => facts.texts[facts.subject[row]] === subject,
  );
  if (!rows.length) return null;
  const right = new Set(rows.map((row) => facts.texts[facts.object[row]]));
  const start = rows[0] * facts.k;
  const items = [];
  for (let i = start; i < start + facts.k; i++) {
    if (facts.object_score[i] === -Infinity) break; // the relation has fewer answers
    const terms = {};
    for (const term of facts.terms) terms[term] = facts["term/" + term][i];
    const item = { text: facts.texts[facts.candidates[i]], object: facts.object_score[i] };
    items.push(facts.reranked ? { ...item, terms } : item);
  }
  return { items, right, row: rows[0], stored: true };
}

/** Subjects that have an object among their stored answers. */
function storedSubjects(facts, relation, object) {
  const items = [];
  const right = new Set();
  const seen = new Set();
  for (const row of facts.relationRows[relation]) {
    const subject = facts.texts[facts.subject[row]];
    if (facts.texts[facts.object[row]] === object) right.add(subject);
    if (seen.has(subject)) continue;
    seen.add(subject);
    for (let i = row * facts.k; i < (row + 1) * facts.k; i++) {
      if (facts.texts[facts.candidates[i]] !== object) continue;
      const terms = {};
      for (const term of facts.terms) terms[term] = facts["term/" + term][i];
      items.push({
        text: subject,
        object: facts.object_score[i],
        terms: facts.reranked ? terms : null,
      });
    }
  }
  items.sort((one, other) => other.object - one.object);
  return { items, right, stored: true };
}

/** Draw the view. */
export async function askView(root, page) {
  const runs = page.runs("facts");
  if (!runs.length) {
    put(root, h("h2", {}, "Ask"), templatePanel(page, null));
    return;
  }
  const run = runs.find((own) => String(own.id) === page.params.run) ?? runs[0];
  const listed = Math.max(
    0,
    run.relations.findIndex((own) => own.name === page.params.relation),
  );
  const backwards = page.params.object !== undefined;
  const given = page.params.object ?? page.params.subject ?? "";
  const go = (changes) => {
    const kept = { run: run.id, relation: run.relations[listed].name };
    page.go("ask", { ...kept, ...changes });
  };
  const names = h("datalist", { id: "names" });
  const input = h("input", {
    id: "name",
    list: "names",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 500,
    placeholder: backwards ? "an object, as Paris" : "a subject, as France",
    value: given,
  });
  const labels = run.relations.map((own) => [
    own.name,
    own.label ? `${own.name}: ${own.label}` : own.name,
  ]);
  const turn = h("button", { type: "button", class: "turn", disabled: true }, "⇄ Turn round");
  const form = h(
    "form",
    {
      class: "bar-of-fields",
      onsubmit: (event) => {
        event.preventDefault();
        go(backwards ? { object: input.value.trim() } : { subject: input.value.trim() });
      },
    },
    pick("Run", runs, run.id, (id) => page.go("ask", { run: id })),
    choice("Relation", labels, run.relations[listed].name, (name) =>
      page.go("ask", { run: run.id, relation: name }),
    ),
    h("label", { class: "field grows" }, h("span", {}, backwards ? "Object" : "Subject"), input),
    names,
    h("button", { type: "submit", class: "main" }, "Ask"),
    turn,
  );
  const about = h("div", { class: "about" });
  const sliders = h("div", {});
  const place = h("div", { class: "answers-place" }, nothing("Reading the facts …"));
  put(root, h("h2", {}, "Ask"), form, about, sliders, place, templatePanel(page, run, listed));
  const facts = await page.source.facts(run.id);
  const relation = facts.relations.findIndex((own) => own.name === run.relations[listed].name);
  const rows = facts.relationRows[relation];
  const field = backwards ? facts.object : facts.subject;
  const offer = new Set(rows.map((row) => facts.texts[field[row]]));
  const suggest = () => {
    const shown = [...offer].slice(0, LISTED).sort((one, other) => one.localeCompare(other));
    put(
      names,
      shown.map((text) => h("option", { value: text })),
    );
  };
  suggest();
  // Names of other splits are read beside, the first view does not wait for them.
  const reading = page.source
    .known(run.id, run.relations[listed].name)
    .then((known) => {
      for (const [subject, objects] of Object.entries(known)) {
        for (const name of backwards ? objects : [subject]) offer.add(name);
      }
      suggest();
      return known;
    })
    .catch(() => ({}));
  const template = facts.relations[relation].template;
  if (!given) {
    put(about, sentence(template, "", ""));
    const [was, now] = [facts.before().all, facts.after({ k: facts.k, scale: 1 }).all];
    const rose = rows.filter((row) => now[row] < was[row]).concat(rows);
    const few = [...new Set(rose.map((row) => facts.texts[field[row]]))].slice(0, 8);
    const tries = few.map((text) =>
      h(
        "button",
        { type: "button", onclick: () => go(backwards ? { object: text } : { subject: text }) },
        text,
      ),
    );
    put(place, h("p", { class: "tries" }, "Try ", tries));
    return;
  }
  put(about, sentence(template, backwards ? "" : given, backwards ? given : ""));
  let found = backwards ? null : storedObjects(facts, relation, given);
  let weights = facts.relations[relation].weights;
  if (!found && page.source.canAsk) {
    put(place, h("p", { class: "quiet busy" }, "Asking the model … the first question loads it."));
    const question = { run: run.id, relation: run.relations[listed].name };
    const answer = await page.source.ask(
      backwards
        ? { ...question, object: given, top: 50 }
        : { ...question, subject: given, top: facts.k },
      page.signal,
    );
    const right = new Set();
    for (const [subject, objects] of Object.entries(await reading)) {
      if (backwards && objects.includes(given)) right.add(subject);
      if (!backwards && subject === given) for (const object of objects) right.add(object);
    }
    const items = answer.answers.map((own) => {
      const terms = { ...own.terms };
      if (own.subject_score !== null) terms.subject = own.subject_score;
      const asked = own.joint !== null;
      return { text: own.text, object: own.object_score, ...(asked ? { terms } : {}) };
    });
    items.sort(
      (one, other) => (other.terms ? 1 : 0) - (one.terms ? 1 : 0) || other.object - one.object,
    );
    found = { items, right, nearest: answer.nearest, known: answer.known };
    weights = answer.weights;
  } else if (!found && backwards) {
    found = storedSubjects(facts, relation, given);
  }
  if (!found || !found.items.length) {
    const why = page.source.canAsk
      ? "no answer."
      : "not among the facts of this file, which holds no model.";
    put(place, nothing(`${given}: ${why}`));
    return;
  }
  const settings = settingsOf(run.id, facts);
  let table = null;
  const draw = () => {
    const limits = backwards ? { ...settings, k: Infinity } : settings;
    const items = rankItems(found.items, weights, limits);
    for (const item of items) item.right = found.right.has(item.text);
    const at = items.findIndex((own) => own.right);
    const told = [];
    if (found.row !== undefined) {
      const was = facts.before().at(found.row);
      const now = facts.rankOf(found.row, { ...settings, filtered: false });
      told.push(`${facts.texts[facts.object[found.row]]}: rank ${shownRank(was)}`);
      // A run without a subject prompt may be re-ranked by its other terms.
      const how = "subject" in weights ? "asking back" : "re-ranking";
      if (facts.reranked) told.push(` → ${shownRank(now)} after ${how}`);
    } else if (at >= 0) told.push(`${items[at].text} is right, at place ${at + 1}`);
    else if (found.nearest)
      told.push(`no known fact about ${given}; did you mean ${found.nearest}?`);
    else told.push(`no known fact about ${given}`);
    const shown = backwards ? items.slice(0, 50) : items;
    const fresh = answerTable(shown, {
      title: h("span", {}, told),
      note: items.some((own) => own.joint !== undefined) ? formula(weights, settings.scale) : null,
      back: (text) => `Turn round: ask with ${text}`,
      chosen: (text) => go(backwards ? { subject: text } : { object: text }),
    });
    glide(table, fresh, place);
    table = fresh;
    turn.disabled = false;
    turn.onclick = () => go(backwards ? { subject: items[0].text } : { object: items[0].text });
  };
  const moved = rerankSliders(facts, settings, relation, draw, backwards);
  if (moved) put(sliders, moved);
  draw();
  page.say(
    `${found.items.length} answers; the first is ${table.querySelector(".answer").textContent}`,
  );
}

/** A field for any sentence, asked of the frozen model itself. */
function templatePanel(page, run, relation = 0) {
  const models = page.about.models ?? [];
  if (!page.source.canAsk || !models.length) return null;
  let model = (models.find((own) => run && own.name === run.model) ?? models[0]).id;
  const template = h("input", { id: "template", maxlength: 1000, spellcheck: "false" });
  template.value = "The capital of [X] is [Y].";
  const subject = h("input", { id: "template-subject", maxlength: 500, value: "France" });
  const words = h("input", { type: "checkbox", checked: true });
  const place = h("div", { "aria-live": "polite" });
  const ask = async (event) => {
    event.preventDefault();
    put(place, h("p", { class: "quiet busy" }, "Asking the model …"));
    try {
      const question = {
        run: model,
        template: template.value,
        subject: subject.value,
        words: words.checked,
      };
      const answer = await page.source.template(question, page.signal);
      const items = answer.answers.map((own) => ({ text: own.text, object: own.object_score }));
      const title = answer.causal
        ? "What follows, by a causal model"
        : "What fills the blank, by a masked model";
      put(
        place,
        answerTable(items, {
          title,
          plain: true,
          back: (text) => `Ask again with ${text} as the subject`,
          chosen: (text) => {
            subject.value = text;
            subject.focus();
          },
        }),
      );
    } catch (error) {
      put(place, h("p", { class: "error", role: "alert" }, error.message));
    }
  };
  return h(
    "section",
    { class: "panel", "aria-labelledby": "free" },
    h("h3", { id: "free" }, "Ask a frozen model in your own words"),
    h(
      "p",
      { class: "quiet" },
      "[X] is the subject, [Y] what is asked for. Nothing is learned for it.",
    ),
    h(
      "form",
      { class: "bar-of-fields", onsubmit: ask },
      pick("Model", models, model, (id) => {
        model = Number(id);
      }),
      h("label", { class: "field grows" }, h("span", {}, "Template"), template),
      h("label", { class: "field" }, h("span", {}, "Subject"), subject),
      h("label", { class: "check" }, words, " whole words only"),
      h("button", { type: "submit", class: "main" }, "Ask the model"),
    ),
    place,
  );
}
