// Map: what a model knows, relation by relation; of two runs, what one has and the other lacks.

import { pairFacts, summarise } from "./columns.js";
import { differingFacts, partFacts } from "./compare.js";
import { choice, h, nothing, number, put, s, shownP } from "./dom.js";

const SIDES = ["both", "first_alone", "second_alone", "neither"];

/** Draw relations as points: facts along, P@1 upwards; of two runs joined by lines. */
function scatter(width, sets, opened) {
  const high = width < 500 ? 300 : 400;
  const edge = { left: 46, right: 18, top: 14, bottom: 40 };
  const counts = sets.flatMap((set) => set.points.map((own) => own.count));
  const [few, many] = [Math.min(...counts) * 0.85, Math.max(...counts) * 1.18];
  const along = (count) =>
    edge.left +
    ((width - edge.left - edge.right) * Math.log(count / few)) / Math.log(many / few || 2);
  // Relations with as many facts stand beside each other, not upon each other.
  const places = new Map();
  for (const set of [...sets].reverse()) {
    for (const own of set.points) {
      let at = along(own.count);
      const taken = (place) =>
        [...places].some(([name, other]) => name !== own.name && Math.abs(other - place) < 15);
      while (taken(at) && at < width - edge.right - 12) at += 15;
      places.set(own.name, places.get(own.name) ?? at);
    }
  }
  const x = (own) => places.get(own.name);
  const y = (value) => high - edge.bottom - ((high - edge.bottom - edge.top) * value) / 100;
  const parts = [];
  for (const tick of [0, 25, 50, 75, 100]) {
    parts.push(
      s("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(tick), y2: y(tick) }),
      s("text", { x: edge.left - 8, y: y(tick) + 4, "text-anchor": "end" }, String(tick)),
    );
  }
  const ends = [Math.min(...counts), Math.max(...counts)];
  const inner = [3, 10, 30, 100, 300, 1000, 3000, 10000];
  const apart = (tick) => ends.every((end) => Math.abs(along(tick) - along(end)) > 50);
  for (const tick of new Set([
    ...ends,
    ...inner.filter((own) => own > ends[0] && own < ends[1] && apart(own)),
  ])) {
    parts.push(
      s(
        "text",
        { x: along(tick), y: high - edge.bottom + 18, "text-anchor": "middle" },
        tick.toLocaleString("en"),
      ),
    );
  }
  parts.push(
    s(
      "text",
      { x: (width + edge.left) / 2, y: high - 4, "text-anchor": "middle" },
      "test facts of the relation",
    ),
    s(
      "text",
      { transform: `translate(12 ${high / 2 - 14}) rotate(-90)`, "text-anchor": "middle" },
      "P@1 in percent",
    ),
  );
  const spots = sets.flatMap((set) =>
    set.points.map((own) => [x(own) - 7, x(own) + 7, y(own.value) + 4]),
  );
  const names = sets[0].points.length <= 16 ? spots : null;
  sets[0].points.forEach((point, at) => {
    const other = sets[1]?.points.find((own) => own.name === point.name);
    if (other) {
      const line = { x1: x(point), y1: y(point.value), x2: x(other), y2: y(other.value) };
      parts.push(s("line", { class: "join", ...line }));
    }
    for (const [place, own] of [
      [1, other],
      [0, point],
    ]) {
      if (!own) continue;
      const told = `${own.name}, ${sets[place].name}: P@1 ${number(own.value)}, ${own.count.toLocaleString("en")} facts`;
      const press = () => opened(own.name);
      const key = (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          press();
        }
      };
      parts.push(
        s(
          "circle",
          {
            class: `point run-${place}`,
            cx: x(own),
            cy: y(own.value),
            r: place ? 8 : 5.5,
            tabindex: 0,
            role: "button",
            "aria-label": told,
            onclick: press,
            onkeydown: key,
          },
          s("title", {}, told),
        ),
      );
    }
    if (!names) return;
    // A name stands where no other is: right of its point, else left of it.
    const top = y(point.value) + 4;
    const size = point.name.length * 7 + 12;
    const fits = (from) =>
      from > edge.left &&
      from + size < width &&
      !names.some(([a, b, c]) => Math.abs(c - top) < 13 && from < b && from + size > a);
    const from = [x(point) + 10, x(point) - 10 - size].find(fits);
    if (from === undefined) return;
    names.push([from, from + size, top]);
    parts.push(s("text", { class: "name", x: from, y: top }, point.name));
  });
  const label = `Relations by number of facts and P@1: ${sets.map((set) => set.name).join(" and ")}`;
  return s(
    "svg",
    { class: "chart", viewBox: `0 0 ${width} ${high}`, role: "group", "aria-label": label },
    parts,
  );
}

function points(facts) {
  const sums = summarise(facts, facts.after({ k: Infinity, scale: 1 })).relations;
  return facts.relations
    .map((own, at) => ({
      name: own.name,
      count: sums[at][3],
      value: (100 * sums[at][0]) / (sums[at][3] || 1),
    }))
    .filter((own) => own.count);
}

/** Draw the view. */
export async function mapView(root, page) {
  const runs = page.runs("facts");
  const find = (key) => runs.find((own) => String(own.id) === page.params[key]);
  const one = find("one") ?? runs[0];
  // Unless another is chosen: the last run on the same data.
  const alike = runs.filter((own) => own !== one && own.data === one.data).pop();
  const other = page.params.other === "none" ? undefined : (find("other") ?? alike);
  const second = other !== one ? other : undefined;
  const chosen = runs.map((own) => [own.id, own.name]);
  const go = (changes) => page.go("map", { one: one.id, other: second?.id ?? "none", ...changes });
  put(root, h("h2", {}, "Map"), nothing("Reading the facts …"));
  const [facts, others] = await Promise.all(
    [one, second].map((own) => own && page.source.facts(own.id)),
  );
  const sets = [{ name: one.name, points: points(facts) }];
  if (second) sets.push({ name: second.name, points: points(others) });
  const drawing = h("div", { class: "card drawing" });
  const place = h("div", { class: "differing", "aria-live": "polite" });
  const below = h("div", {});
  const legend = h(
    "p",
    { class: "legend" },
    sets.map((set, at) => h("span", {}, h("i", { class: `dot run-${at}` }), set.name)),
  );
  put(
    root,
    h("h2", {}, "Map"),
    h(
      "div",
      { class: "bar-of-fields" },
      choice("Run", chosen, one.id, (id) => go({ one: id })),
      runs.length > 1
        ? choice(
            "Beside it",
            [["none", "nothing"], ...chosen.filter(([id]) => id !== one.id)],
            second?.id ?? "none",
            (id) => go({ other: id }),
          )
        : null,
    ),
    drawing,
    below,
    place,
  );
  let parts = null;
  const pairs = second ? pairFacts(facts, others) : [];
  const open = (relation) => {
    if (!second) {
      page.go("facts", { run: one.id, relation });
      return;
    }
    parts = partFacts(facts, others, pairs, relation);
    put(
      place,
      h("h3", {}, relation ?? "All relations"),
      h(
        "div",
        { class: "two" },
        ["first_alone", "second_alone"].map((side) =>
          differingFacts(page, [one, second], [facts, others], parts[side], side, relation),
        ),
      ),
    );
    place.scrollIntoView({ block: "nearest" });
  };
  const draw = () => {
    const width = Math.max(300, Math.round(drawing.clientWidth - 24));
    put(drawing, legend, scatter(width, sets, open));
  };
  draw();
  const again = new ResizeObserver(draw);
  again.observe(below);
  page.signal.addEventListener("abort", () => again.disconnect());
  if (!second) return;
  const whole = await page.source.diff(one.id, second.id);
  put(below, diffTable(one, second, whole, partsOf(facts, others, pairs), open));
}

function partsOf(facts, others, pairs) {
  const all = partFacts(facts, others, pairs);
  const counts = new Map();
  for (const side of SIDES) {
    for (const [row] of all[side]) {
      const name = facts.relations[facts.relation[row]].name;
      if (!counts.has(name))
        counts.set(name, { both: 0, first_alone: 0, second_alone: 0, neither: 0 });
      counts.get(name)[side]++;
    }
  }
  return { all: Object.fromEntries(SIDES.map((side) => [side, all[side].length])), counts };
}

/** What both, one or none know, a stacked bar for each relation; p by an exact sign test. */
function diffTable(one, other, whole, { all, counts }, open) {
  const ps = new Map((whole?.groups ?? []).map((own) => [own.relation, own.p_corrected ?? own.p]));
  const row = (name, own, p, relation) => {
    const sum = SIDES.reduce((total, side) => total + own[side], 0);
    let from = 0;
    const bars = SIDES.map((side) => {
      const share = (100 * own[side]) / (sum || 1);
      const bar = s("rect", { class: side, x: `${from}%`, width: `${share}%`, height: "100%" });
      from += share;
      return bar;
    });
    const label = `${name}: both ${own.both}, ${one.name} alone ${own.first_alone}, ${other.name} alone ${own.second_alone}, neither ${own.neither}`;
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        h("button", { type: "button", class: "answer", onclick: () => open(relation) }, name),
      ),
      h("td", { class: "figure" }, sum.toLocaleString("en")),
      h(
        "td",
        { class: "stack" },
        s("svg", { role: "img", "aria-label": label }, s("title", {}, label), bars),
      ),
      h("td", { class: "figure" }, own.first_alone.toLocaleString("en")),
      h("td", { class: "figure" }, own.second_alone.toLocaleString("en")),
      h("td", { class: "figure" }, shownP(p)),
    );
  };
  const rows = [...counts].sort(
    (a, b) => b[1].first_alone + b[1].second_alone - a[1].first_alone - a[1].second_alone,
  );
  const heads = ["relation", "facts", "", `${one.name} alone`, `${other.name} alone`, "p"];
  const told =
    "Known: the right object comes first. p: exact sign test on the facts that one alone knows, corrected for the relations (Holm).";
  return h(
    "div",
    { class: "card" },
    h("p", { class: "caption quiet" }, told),
    h(
      "p",
      { class: "caption legend" },
      [
        ["both", "both"],
        ["first_alone", `${one.name} alone`],
        ["second_alone", `${other.name} alone`],
        ["neither", "neither"],
      ].map(([side, text]) => h("span", {}, h("i", { class: `dot ${side}` }), text)),
    ),
    h(
      "div",
      { class: "scrolls" },
      h(
        "table",
        { class: "compare diff", "aria-label": "What the two know" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((text) => h("th", { scope: "col" }, text)),
          ),
        ),
        h("tbody", {}, row("all", all, whole?.all?.p, null)),
        h(
          "tbody",
          {},
          rows.map(([name, own]) => row(name, own, ps.get(name), name)),
        ),
      ),
    ),
  );
}
