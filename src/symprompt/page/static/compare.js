// Compare: methods x relations as a coloured table; a cell opens the facts that differ.

import { pairFacts } from "./columns.js";
import { choice, h, nothing, number, pick, put, shownP } from "./dom.js";
import { factColumns } from "./facts.js";
import { Rows } from "./rows.js";

const METRICS = [
  ["p1", "P@1"],
  ["p10", "P@10"],
  ["mrr", "MRR"],
];

/** Return [row of one, row of another] of the facts that one run, the other, both or none know. */
export function partFacts(one, other, pairs, relation = null) {
  const own = { first_alone: [], second_alone: [], both: [], neither: [] };
  const [ranks, others] = [
    one.after({ k: Infinity, scale: 1 }),
    other.after({ k: Infinity, scale: 1 }),
  ];
  for (const pair of pairs) {
    if (relation !== null && one.relations[one.relation[pair[0]]].name !== relation) continue;
    const [first, second] = [ranks.at(pair[0]) <= 1, others.at(pair[1]) <= 1];
    own[first ? (second ? "both" : "first_alone") : second ? "second_alone" : "neither"].push(pair);
  }
  return own;
}

/** Make a list of the facts that one run knows and another does not, with both ranks. */
export function differingFacts(page, [one, other], [facts, others], pairs, side, relation) {
  const ranks = [facts.after({ k: Infinity, scale: 1 }), others.after({ k: Infinity, scale: 1 })];
  const wrong = side === "first_alone" ? [others, 1] : [facts, 0];
  const look = (pair) => ({
    facts,
    row: pair[0],
    was: ranks[0].at(pair[0]),
    now: ranks[1].at(pair[1]),
    answer: () => {
      const row = pair[wrong[1]];
      return wrong[0].texts[wrong[0].candidates[row * wrong[0].k + wrong[0].first[row]]];
    },
  });
  const open = (pair) =>
    page.go("ask", {
      run: side === "first_alone" ? one.id : other.id,
      relation: facts.relations[facts.relation[pair[0]]].name,
      subject: facts.texts[facts.subject[pair[0]]],
    });
  const [right, lacks] = side === "first_alone" ? [one, other] : [other, one];
  const title = `Right in ${right.name}, not in ${lacks.name}`;
  const columns = factColumns(look, [one.name, other.name], "wrong answer");
  const list = new Rows(title, columns.slice(relation === null ? 0 : 1, -1), open);
  list.element.classList.add("low");
  list.show(pairs);
  return h("div", {}, h("h4", {}, `${title}: ${pairs.length.toLocaleString("en")}`), list.element);
}

/** Draw the view. */
export async function compareView(root, page) {
  const runs = page.runs("facts");
  put(root, h("h2", {}, "Compare"), nothing("Drawing intervals …"));
  const found = await page.source.compare(runs.map((own) => own.id));
  const shown = runs.filter((own) => found.runs.some((each) => each.name === String(own.id)));
  let metric = "p1";
  let base = page.params.base ?? String(shown[0].id);
  let sort = { key: "order", down: false };
  const table = h("table", { class: "compare" });
  const caption = h("p", { class: "caption quiet" });
  const place = h("div", { class: "differing", "aria-live": "polite" });
  const mean = (own) =>
    found.runs.find((each) => each.name === String(own.id))["mean over relations"];
  const cellOf = (row, own) => row.runs.find((each) => each.name === String(own.id));

  const open = async (own, relation) => {
    if (shown.length < 2) {
      page.go("facts", { run: own.id, relation });
      return;
    }
    const first =
      shown.find((each) => String(each.id) === base && each !== own) ??
      shown.find((each) => each !== own);
    put(place, h("p", { class: "quiet busy" }, "Reading the facts …"));
    const both = await Promise.all([first, own].map((each) => page.source.facts(each.id)));
    const parts = partFacts(both[0], both[1], pairFacts(...both), relation);
    put(
      place,
      h("h3", {}, relation ?? "All relations", `: ${first.name} and ${own.name}`),
      h(
        "div",
        { class: "two" },
        ["second_alone", "first_alone"].map((side) =>
          differingFacts(page, [first, own], both, parts[side], side, relation),
        ),
      ),
    );
    place.scrollIntoView({ block: "nearest" });
    page.say(
      `${parts.second_alone.length} facts right in ${own.name} alone, ${parts.first_alone.length} in ${first.name} alone`,
    );
  };

  const head = (key, text, title = null) => {
    const now = sort.key === key ? (sort.down ? "descending" : "ascending") : "none";
    const press = () => {
      sort = { key, down: sort.key === key ? !sort.down : key !== "order" };
      draw();
    };
    const arrow = now === "none" ? "" : sort.down ? " ▼" : " ▲";
    return h(
      "th",
      { scope: "col", "aria-sort": now, title },
      h("button", { type: "button", onclick: press }, text, arrow),
    );
  };

  const cell = (value, own, relation) => {
    if (!value) return h("td", { class: "quiet" }, "–");
    const interval = `${number(value.low, 1)} to ${number(value.high, 1)}`;
    const press = () => open(own, relation);
    const label = `${own.name}, ${relation ?? "all relations"}: ${number(value.value)}, interval ${interval}; show facts`;
    const td = h(
      "td",
      { class: "shade" },
      h(
        "button",
        { type: "button", onclick: press, "aria-label": label },
        h("b", {}, number(value.value)),
        h("small", {}, interval),
      ),
    );
    td.style.setProperty("--share", `${Math.round(value.value * 0.62)}%`);
    return td;
  };

  const draw = () => {
    const order = found.relations.map((row, at) => ({ row, at }));
    const key = ({ row, at }) => {
      if (sort.key === "order") return at;
      if (sort.key === "facts") return Math.max(...row.runs.map((own) => own.facts));
      return row.runs.find((own) => own.name === sort.key)?.[metric]?.value ?? -1;
    };
    order.sort((one, other) => (key(one) - key(other)) * (sort.down ? -1 : 1) || one.at - other.at);
    const rows = order.map(({ row }) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, row.relation, row.label ? h("small", {}, row.label) : null),
        h(
          "td",
          { class: "figure" },
          Math.max(...row.runs.map((own) => own.facts)).toLocaleString("en"),
        ),
        shown.map((own) => cell(cellOf(row, own)?.[metric], own, row.relation)),
      ),
    );
    const total = h(
      "tr",
      { class: "total" },
      h("th", { scope: "row" }, "mean over relations"),
      h(
        "td",
        { class: "figure" },
        Math.max(...found.runs.map((own) => own.facts)).toLocaleString("en"),
      ),
      shown.map((own) => cell(mean(own)[metric], own, null)),
    );
    const name = METRICS.find(([own]) => own === metric)[1];
    table.setAttribute("aria-label", `${name} of runs by relation`);
    caption.textContent = `${name} in percent with 95 % intervals; a cell opens the facts that differ.`;
    put(
      table,
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          head("order", "relation"),
          head("facts", "facts"),
          shown.map((own) => head(String(own.id), own.name, `${own.method} on ${own.model}`)),
        ),
      ),
      h("tbody", {}, total),
      h("tbody", {}, rows),
    );
  };
  const changes = (found.differences ?? []).map((row) => {
    const change = row["mean over relations"].p1;
    const name = (id) => page.about.runs[Number(id)].name;
    const sign = change.difference > 0 ? "+" : "";
    return h(
      "li",
      {},
      `${name(row.name)} minus ${name(row.to)}: ${sign}${number(change.difference)} P@1 (${number(change.low)} to ${number(change.high)}), p ${shownP(change.p)}`,
    );
  });
  put(
    root,
    h("h2", {}, "Compare"),
    h(
      "div",
      { class: "bar-of-fields" },
      choice("Figure", METRICS, metric, (own) => {
        metric = own;
        draw();
      }),
      shown.length > 1
        ? pick("Held against", shown, base, (own) => {
            base = own;
            put(place);
          })
        : null,
    ),
    h("div", { class: "card" }, caption, h("div", { class: "scrolls" }, table)),
    changes.length ? h("ul", { class: "notes" }, changes) : "",
    h(
      "details",
      { class: "quiet" },
      h("summary", {}, "Notes"),
      h(
        "ul",
        { class: "notes" },
        (found.notes ?? []).map((note) => h("li", {}, note)),
      ),
    ),
    place,
  );
  draw();
}
