// Tasks: tuned prompts answer for one text, several tasks at once.

import { h, nothing, number, put, s } from "./dom.js";

function shareBars(shares) {
  const rows = Object.entries(shares)
    .sort((one, other) => other[1] - one[1])
    .slice(0, 12);
  return h(
    "table",
    { class: "answers shares" },
    h(
      "tbody",
      {},
      rows.map(([name, share], at) =>
        h(
          "tr",
          { class: at ? null : "is-first" },
          h("th", { scope: "row" }, name),
          h(
            "td",
            { class: "score" },
            h("span", { class: "value" }, `${number(100 * share, 1)} %`),
            s(
              "svg",
              { class: "bar object", "aria-hidden": "true" },
              s("rect", { width: `${100 * share}%`, height: "100%", rx: 3 }),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Return [label, start, end] of the spans that tags of words make; other tags are spans of one. */
export function tagSpans(tags) {
  const spans = [];
  tags.forEach((tag, at) => {
    const [, mark, label] = /^([BIES])-(.*)$/.exec(tag) ?? [null, "", tag];
    const last = spans[spans.length - 1];
    if (tag === "O" || tag === "_") return;
    const goes = mark === "I" || mark === "E";
    if (goes && last && last[2] === at && last[0] === label) last[2] = at + 1;
    else spans.push([label, at, at + 1]);
  });
  return spans;
}

/** Draw spans on the words of a text; those within others are named below. */
function drawSpans(words, spans, odds = []) {
  const order = spans
    .map((own, at) => ({ own, at }))
    .sort((one, other) => one.own[1] - other.own[1] || other.own[2] - one.own[2]);
  const labels = [...new Set(spans.map(([label]) => label))];
  const [shown, inner] = [[], []];
  let place = 0;
  for (const { own, at } of order) {
    const [label, start, end] = own;
    const told = odds[at] === undefined ? label : `${label} ${number(odds[at], 2)}`;
    if (start < place) {
      inner.push(h("li", {}, h("b", {}, words.slice(start, end).join(" ")), ` ${told}`));
      continue;
    }
    shown.push(words.slice(place, start).join(" "), " ");
    shown.push(
      h(
        "span",
        { class: `span group-${labels.indexOf(label) % 8}` },
        words.slice(start, end).join(" "),
        h("small", {}, told),
      ),
      " ",
    );
    place = end;
  }
  shown.push(words.slice(place).join(" "));
  return [h("p", { class: "spans" }, shown), inner.length ? h("ul", {}, inner) : null];
}

function drawAnswer(own, parts) {
  if (own.error) return h("p", { class: "error", role: "alert" }, own.error);
  if (own.probabilities)
    return [h("p", { class: "verdict" }, own.prediction), shareBars(own.probabilities)];
  const words = (own.text ?? parts[0]).split(/\s+/);
  if (own.kind === "spans" || own.kind === "relations") {
    const names = own.prediction.map(([, start, end]) => words.slice(start, end).join(" "));
    const joined = (own.relations ?? []).map(([name, one, other]) =>
      h("li", {}, `${names[one]} — ${name} → ${names[other]}`),
    );
    return [drawSpans(words, own.prediction, own.odds), joined.length ? h("ul", {}, joined) : null];
  }
  if (Array.isArray(own.prediction)) return drawSpans(words, tagSpans(own.prediction));
  if (own.candidates) {
    const context = parts[1] ?? "";
    const at = own.prediction ? context.indexOf(own.prediction) : -1;
    const text =
      at < 0
        ? context
        : [
            context.slice(0, at),
            h("mark", {}, own.prediction),
            context.slice(at + own.prediction.length),
          ];
    return [
      h("p", { class: "verdict" }, own.prediction || "no answer in the text"),
      h("p", { class: "spans" }, text),
      h(
        "ul",
        { class: "quiet" },
        own.candidates.map((each) => h("li", {}, `${each.text || "(none)"} ${number(each.score)}`)),
      ),
    ];
  }
  const sure = own.probability === undefined ? "" : ` (${number(100 * own.probability, 1)} %)`;
  return h("p", { class: "verdict" }, `${own.prediction}${sure}`);
}

/** Draw the view. */
export async function tasksView(root, page) {
  const runs = page.runs("task");
  if (!page.source.canAsk) {
    put(
      root,
      h("h2", {}, "Tasks"),
      runs.map((own) => figureCard(own)),
    );
    return;
  }
  const boxes = runs.map((own) => {
    const box = h("input", { type: "checkbox", checked: true, value: String(own.id) });
    return {
      own,
      box,
      label: h(
        "label",
        { class: "check" },
        box,
        ` ${own.name} `,
        h("span", { class: "quiet" }, [own.task_kind, own.method].filter(Boolean).join(", ")),
      ),
    };
  });
  const first = h("textarea", { id: "text", rows: 3, maxlength: 10000 });
  const second = h("textarea", { id: "second", rows: 3, maxlength: 10000 });
  const more = [3, 4].map((at) => h("textarea", { id: `text-${at}`, rows: 2, maxlength: 10000 }));
  const place = h("div", { "aria-live": "polite" });
  const ask = async (event) => {
    event.preventDefault();
    const chosen = boxes.filter(({ box }) => box.checked).map(({ own }) => own.id);
    if (!chosen.length || !first.value.trim()) {
      put(place, nothing("Choose a task and type a text."));
      return;
    }
    const given = [first, second, ...more].map((field) => field.value);
    const parts = given.filter((text) => text.trim());
    put(place, h("p", { class: "quiet busy" }, "Asking the model … the first question loads it."));
    try {
      const found = await page.source.predict({ runs: chosen, parts }, page.signal);
      const cards = Object.entries(found.answers).map(([id, own]) => {
        const run = page.about.runs[Number(id)];
        return h(
          "section",
          { class: "card task" },
          h(
            "h3",
            {},
            run.name,
            " ",
            run.task === run.name ? "" : h("small", { class: "quiet" }, run.task ?? ""),
          ),
          drawAnswer(own, parts),
        );
      });
      const note = found.batches
        ? `${found.together} of ${cards.length} answered by deep prefixes, in ${found.batches === 1 ? "one mixed batch" : `${found.batches} batches`}.`
        : "";
      put(place, h("div", { class: "cards" }, cards), note ? h("p", { class: "quiet" }, note) : "");
    } catch (error) {
      put(place, h("p", { class: "error", role: "alert" }, error.message));
    }
  };
  put(
    root,
    h("h2", {}, "Tasks"),
    h(
      "form",
      { class: "stacked", onsubmit: ask },
      h(
        "fieldset",
        {},
        h("legend", {}, "Tasks that answer"),
        boxes.map(({ label }) => label),
      ),
      h("label", { class: "field grows" }, h("span", {}, "Text, or the question"), first),
      h(
        "label",
        { class: "field grows" },
        h(
          "span",
          {},
          "Second text: of a pair, the context of a question, a role's predicate (its word); else empty",
        ),
        second,
      ),
      h(
        "details",
        {},
        h("summary", { class: "quiet" }, "More texts, for patterns that read three or four"),
        more.map((field, at) =>
          h("label", { class: "field grows" }, h("span", {}, `Text ${at + 3}`), field),
        ),
      ),
      h("button", { type: "submit", class: "main" }, "Ask all"),
    ),
    place,
  );
}

function figureCard(own) {
  const rows = own.figures.map((each) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `${each.split} ${each.metric}`),
      h("td", { class: "figure" }, number(each.value)),
    ),
  );
  return h(
    "section",
    { class: "card task" },
    h("h3", {}, own.name),
    h("p", { class: "quiet" }, `${own.method} on ${own.model}; this file holds no model to ask.`),
    h("table", {}, h("tbody", {}, rows)),
  );
}
