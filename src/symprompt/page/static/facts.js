// Facts: every test fact with the right object's rank before and after asking back.

import { summarise } from "./columns.js";
import { choice, clean, h, nothing, number, pick, put, shownRank } from "./dom.js";
import { Rows } from "./rows.js";
import { rerankSliders, settingsOf } from "./settings.js";

/** What a fact may be filtered by: its ranks before and after. */
const FILTERS = [
  ["all", "All", "every test fact"],
  ["rose", "Rose", "the right object ranks higher after re-ranking"],
  ["fell", "Fell", "it ranks lower"],
  ["won", "Won", "it comes first now and did not before"],
  ["lost", "Lost", "it came first before and does not now"],
  ["tie", "Tie", "another object has exactly its score"],
  ["outside", "Outside", "it is not among the candidates that are re-ranked"],
];

/** Return columns of a table of facts; look(item) gives {facts, row, was, now, answer}. */
export function factColumns(look, titles = ["before", "after"], answer = "first answer") {
  const name = (key) => (cell, item) => {
    const { facts, row } = look(item);
    cell.textContent = clean(key(facts, row));
  };
  const rank = (key) => (cell, item) => {
    const value = look(item)[key];
    cell.textContent = value === undefined ? "–" : shownRank(value);
    cell.classList.toggle("top", value === 1);
  };
  return [
    {
      title: "relation",
      size: "minmax(6rem, 1fr)",
      narrow: false,
      class: "quiet",
      fill: name((facts, row) => facts.relations[facts.relation[row]].name),
    },
    {
      title: "subject",
      size: "minmax(4.5rem, 2fr)",
      fill: name((facts, row) => facts.texts[facts.subject[row]]),
    },
    {
      title: "right object",
      size: "minmax(3.5rem, 1.4fr)",
      fill: name((facts, row) => facts.texts[facts.object[row]]),
    },
    {
      title: answer,
      size: "minmax(3.5rem, 1.4fr)",
      narrow: false,
      fill: (cell, item) => {
        cell.textContent = clean(look(item).answer());
      },
    },
    { title: titles[0], size: "4rem", class: "figure", fill: rank("was") },
    { title: titles[1], size: "4rem", class: "figure", fill: rank("now") },
    {
      title: "",
      size: "1.2rem",
      fill: (cell, item) => {
        const { was, now } = look(item);
        const way = now < was ? "up" : now > was ? "down" : "same";
        cell.className = `move ${way}`;
        cell.textContent = { up: "▲", down: "▼", same: "" }[way];
        cell.setAttribute("aria-label", { up: "rose", down: "fell", same: "same" }[way]);
      },
    },
  ];
}

/** Return the filters that a fact passes, as bits in the order of FILTERS. */
function passed(was, now, tie, outside) {
  let bits = 1;
  if (now < was) bits |= 2;
  else if (now > was) bits |= 4;
  if (now === 1 && was !== 1) bits |= 8;
  else if (was === 1 && now !== 1) bits |= 16;
  if (tie) bits |= 32;
  return outside ? bits | 64 : bits;
}

/** Return a test for facts whose subject, object or relation holds a text. */
export function searcher(facts, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  facts.lower ??= facts.texts.map((own) => own.toLowerCase());
  const held = Uint8Array.from(facts.lower, (own) => (own.includes(wanted) ? 1 : 0));
  const relations = facts.relations.map((own) =>
    `${own.name} ${own.label}`.toLowerCase().includes(wanted),
  );
  return (row) =>
    held[facts.subject[row]] || held[facts.object[row]] || relations[facts.relation[row]];
}

/** Draw the view. */
export async function factsView(root, page) {
  const runs = page.runs("facts");
  if (!runs.length) {
    put(root, h("h2", {}, "Facts"), nothing("No run on facts was given."));
    return;
  }
  const run = runs.find((own) => String(own.id) === page.params.run) ?? runs[0];
  put(root, h("h2", {}, "Facts"), nothing("Reading the facts …"));
  const facts = await page.source.facts(run.id);
  const settings = settingsOf(run.id, facts);
  let filter = FILTERS.some(([key]) => key === page.params.filter) ? page.params.filter : "all";
  let relation = facts.relations.findIndex((own) => own.name === page.params.relation);
  let before;
  let after;
  const look = (row) => ({
    facts,
    row,
    was: before.at(row),
    now: after.at(row),
    answer: () => facts.texts[facts.candidates[row * facts.k + facts.firstAnswer(row, settings)]],
  });
  const open = (row) =>
    page.go("ask", {
      run: run.id,
      relation: facts.relations[facts.relation[row]].name,
      subject: facts.texts[facts.subject[row]],
    });
  const table = new Rows("Test facts", factColumns(look), open);
  const figures = h("p", { class: "figures" });
  const search = h("input", { type: "search", id: "search", oninput: () => list() });
  const buttons = FILTERS.map(([key, text, why]) => {
    const count = h("b", {});
    const press = () => {
      filter = key;
      list();
    };
    const button = h("button", { type: "button", title: why, onclick: press }, text, " ", count);
    return { key, button, count };
  });
  const rows = new Int32Array(facts.count);
  const scope = new Int32Array(facts.count);
  const list = (stay = false) => {
    const found = searcher(facts, search.value);
    const counts = FILTERS.map(() => 0);
    const wanted = 1 << FILTERS.findIndex(([key]) => key === filter);
    const [was, now] = [before.all, after.all];
    let [shown, inside] = [0, 0];
    for (let row = 0; row < facts.count; row++) {
      if (relation >= 0 && facts.relation[row] !== relation) continue;
      if (found && !found(row)) continue;
      scope[inside++] = row;
      const outside = facts.place[row] < 0 || facts.place[row] >= settings.k;
      const bits = passed(was[row], now[row], after.equal[row] > 0, outside);
      for (let at = 0; at < counts.length; at++) counts[at] += (bits >> at) & 1;
      if (bits & wanted) rows[shown++] = row;
    }
    buttons.forEach((own, at) => {
      own.count.textContent = counts[at].toLocaleString("en");
      own.button.setAttribute("aria-pressed", own.key === filter);
    });
    const first = summarise(facts, before, scope.subarray(0, inside));
    const then = summarise(facts, after, scope.subarray(0, inside));
    const told = [
      ["P@1", "p1"],
      ["P@10", "p10"],
      ["MRR", "mrr"],
    ].map(([name, key]) =>
      h(
        "span",
        { class: "figure-of" },
        h("b", {}, name),
        " ",
        facts.reranked ? `${number(first[key].relations)} → ` : "",
        h("strong", {}, number(then[key].relations)),
      ),
    );
    const inexact = !facts.exact && facts.reranked && !facts.isOwn(settings);
    put(
      figures,
      told,
      h(
        "span",
        { class: "quiet" },
        "%, mean over relations",
        inexact ? "; from scores in 16 bits" : "",
      ),
    );
    table.show(rows.subarray(0, shown), stay);
  };
  const move = () => {
    before = facts.before(settings.filtered);
    after = facts.after(settings);
    list(true);
  };
  const filtered = h("input", {
    type: "checkbox",
    checked: settings.filtered,
    onchange: () => {
      settings.filtered = filtered.checked;
      move();
    },
  });
  const relations = facts.relations.map((own, at) => [
    at,
    own.label ? `${own.name}: ${own.label}` : own.name,
  ]);
  put(
    root,
    h("h2", {}, "Facts"),
    h(
      "div",
      { class: "bar-of-fields" },
      pick("Run", runs, run.id, (id) => page.go("facts", { run: id })),
      choice("Relation", [[-1, "all relations"], ...relations], relation, (at) => {
        relation = Number(at);
        list();
      }),
      h("label", { class: "field grows" }, h("span", {}, "Search"), search),
      h(
        "label",
        { class: "check", title: "Other true objects of the same subject do not count" },
        filtered,
        " filtered ranks",
      ),
    ),
    rerankSliders(facts, settings, -1, move) ?? "",
    figures,
    h(
      "div",
      { class: "chips", role: "group", "aria-label": "Which facts" },
      buttons.map((own) => own.button),
    ),
    table.element,
  );
  move();
  facts.prepare();
}
