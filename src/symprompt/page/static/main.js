// The page: views by the address after #, one data source, messages and colours.

import { askView } from "./ask.js";
import { compareView } from "./compare.js";
import { h, put } from "./dom.js";
import { factsView } from "./facts.js";
import { liveView } from "./live.js";
import { mapView } from "./map.js";
import { openSource } from "./source.js";
import { tasksView } from "./tasks.js";
import { wordsView } from "./words.js";

const VIEWS = {
  ask: ["Ask", askView, (page) => page.runs("facts").length || page.models.length],
  facts: ["Facts", factsView, (page) => page.runs("facts").length],
  compare: ["Compare", compareView, (page) => page.runs("facts").length],
  map: ["Map", mapView, (page) => page.runs("facts").length],
  tasks: ["Tasks", tasksView, (page) => page.runs("task").length],
  words: ["Words", wordsView, (page) => page.about.corpus && page.models.length],
  live: ["Live", liveView, (page) => page.about.runs.some((own) => own.live)],
};
const THEMES = ["auto", "light", "dark"];

/** What views work with. */
class Page {
  constructor(source, about) {
    this.source = source;
    this.about = about;
    this.models = about.models ?? [];
    this.params = {};
    this.stop = new AbortController();
  }

  /** Ends when another view is opened. */
  get signal() {
    return this.stop.signal;
  }

  /** The runs of a kind. */
  runs(kind) {
    return this.about.runs.filter((own) => own.kind === kind);
  }

  /** Open a view. */
  go(view, params = {}) {
    const plain = Object.entries(params).map(([key, value]) => [key, String(value)]);
    const query = new URLSearchParams(plain).toString();
    const address = `#${view}${query ? "?" + query : ""}`;
    if (location.hash === address) this.show();
    else location.hash = address;
  }

  /** Tell those who do not see the page, and those who do, what happened. */
  say(text) {
    document.getElementById("status").textContent = text;
  }

  /** Draw the view that the address names. */
  async show() {
    this.stop.abort();
    this.stop = new AbortController();
    const own = this.stop.signal;
    const [name, query] = location.hash.slice(1).split("?");
    const there = Object.keys(VIEWS).filter((key) => VIEWS[key][2](this));
    const view = there.includes(name) ? name : (there[0] ?? "ask");
    this.params = Object.fromEntries(new URLSearchParams(query ?? ""));
    const tabs = there.map((key) =>
      h("a", { href: `#${key}`, "aria-current": key === view ? "page" : null }, VIEWS[key][0]),
    );
    put(document.getElementById("tabs"), tabs);
    document.title = `${VIEWS[view][0]} · symprompt`;
    const root = h("div", { class: `view-${view}` });
    const main = document.getElementById("view");
    put(main, root);
    try {
      await VIEWS[view][1](root, this);
    } catch (error) {
      if (own.aborted) return;
      for (const waiting of root.querySelectorAll(".busy")) waiting.remove();
      root.append(h("p", { class: "error", role: "alert" }, error.message));
    }
    if (!own.aborted) document.body.dataset.ready = view;
  }
}

function showBroken(about) {
  const broken = about.runs.filter((own) => own.kind === "broken");
  if (!broken.length) return;
  const told = broken.map((own) => h("li", {}, h("b", {}, own.name), ": ", own.error));
  const count =
    broken.length === 1 ? "One run cannot be read" : `${broken.length} runs cannot be read`;
  const summary = h("summary", {}, `${count}; all others are shown.`);
  const place = document.getElementById("broken");
  put(place, h("details", { class: "error" }, summary, h("ul", {}, told)));
}

function chooseTheme() {
  const button = document.getElementById("theme");
  let theme = "auto";
  const show = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    show();
  });
  show();
}

async function start() {
  chooseTheme();
  const source = openSource();
  try {
    const about = await source.about();
    const page = new Page(source, about);
    showBroken(about);
    addEventListener("hashchange", () => page.show());
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById("view").focus();
    });
    await page.show();
  } catch (error) {
    const told = h("p", { class: "error", role: "alert" }, error.message);
    put(document.getElementById("view"), told);
  }
}

start();
