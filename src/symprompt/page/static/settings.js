// How a run's candidates are re-ranked: K, the scale of the subject's weight, filtered or raw.

import { h, number, slider } from "./dom.js";

const kept = new Map();

/** Return a run's settings, which views share; its own ones at first. */
export function settingsOf(run, facts) {
  if (!kept.has(run)) kept.set(run, { k: facts.k, scale: 1, filtered: false });
  return kept.get(run);
}

/** Make the sliders of K and weight; changed() is called with every move. */
export function rerankSliders(facts, settings, relation, changed, backwards = false) {
  if (!facts.askedBack) return null;
  const weights = relation < 0 ? facts.relations : [facts.relations[relation]];
  const own = weights.map((each) => each.weights.subject ?? 0);
  const low = Math.min(...own);
  const high = Math.max(...own);
  const times = (scale) => {
    const shown = [...new Set([low, high].map((each) => number(each * scale)))].join(" to ");
    return `${shown}${scale === 1 ? " (the run's own)" : ` (${number(scale)} × its own)`}`;
  };
  const set = (key) => (value) => {
    settings[key] = value;
    changed();
  };
  const ask = { min: 1, max: facts.k, step: 1, value: Math.min(settings.k, facts.k) };
  const weigh = { min: 0, max: 3, step: 0.05, value: settings.scale };
  return h(
    "div",
    { class: "sliders" },
    // Of an object all known subjects are ranked.
    !backwards &&
      slider("Candidates asked back, K", {
        ...ask,
        shown: (k) => `${k} of ${facts.k}`,
        oninput: set("k"),
      }),
    slider("Weight of asking back", { ...weigh, shown: times, oninput: set("scale") }),
  );
}
