// Elements made by hand. Names from data are set as text and never parsed as markup.

const UNSEEN =
  /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu;

/** Return a name safe to show: what is unseen, or turns text around, is shown by its code. */
export function clean(text) {
  const code = (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0");
  return String(text).replace(UNSEEN, code);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...nodes(children));
  return element;
}

/** Return nodes of what may be nested lists of nodes and texts; what is not there is left out. */
function nodes(children) {
  const there = children
    .flat(3)
    .filter((own) => own !== null && own !== undefined && own !== false);
  return there.map((own) => (own instanceof Node ? own : document.createTextNode(clean(own))));
}

/** Have an element hold these children and no others. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/** Make an HTML element: attributes, handlers as "onclick", children as nodes or texts. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Make a labelled choice; options are [value, text]. */
export function choice(label, options, value, onchange, attributes = {}) {
  const made = options.map(([own, text]) =>
    h("option", { value: String(own), selected: String(own) === String(value) }, text),
  );
  const select = h("select", { onchange: () => onchange(select.value), ...attributes }, made);
  return h("label", { class: "field" }, h("span", {}, label), select);
}

/** Make a labelled choice of runs or models, by their names. */
export function pick(label, runs, id, onchange) {
  return choice(
    label,
    runs.map((own) => [own.id, own.name]),
    id,
    onchange,
  );
}

/** Make a labelled slider whose value is written beside it. */
export function slider(label, { min, max, step, value, shown, oninput }) {
  const told = h("b", { class: "told" }, shown(value));
  const input = h("input", { type: "range", min, max, step, "aria-label": label });
  input.value = String(value);
  input.setAttribute("aria-valuetext", shown(value));
  input.addEventListener("input", () => {
    const now = Number(input.value);
    told.textContent = shown(now);
    input.setAttribute("aria-valuetext", shown(now));
    oninput(now);
  });
  return h("label", { class: "field slider" }, h("span", {}, label, " ", told), input);
}

// Made once: making one takes longer than all its uses in a view.
const formats = [0, 1, 2, 3].map(
  (digits) =>
    new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
);
const halves = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Return a number as people read it. */
export function number(value, digits = 2) {
  return Number.isFinite(value) ? formats[digits].format(value) : "–";
}

/** Return a rank: whole, or with the half of a tie. */
export function shownRank(rank) {
  return halves.format(rank);
}

/** Return a p-value as papers write it. */
export function shownP(p) {
  return p === undefined || p === null ? "" : p < 0.001 ? "< 0.001" : p.toFixed(3);
}

/** Return a note that says why there is nothing to see. */
export function nothing(text) {
  return h("p", { class: "quiet" }, text);
}
