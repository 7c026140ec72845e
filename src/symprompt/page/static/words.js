// Words: the occurrences of a word as points, near where their vectors are; nearest ones on click.

import { h, nothing, pick, put, s } from "./dom.js";

/** Draw the view. */
export async function wordsView(root, page) {
  const models = page.about.models;
  let model = Number(page.params.run ?? models[0].id);
  const word = h("input", {
    id: "word",
    maxlength: 100,
    value: page.params.word ?? "",
    placeholder: "a word, as bank; forms parted by commas",
  });
  const clusters = h("input", {
    type: "number",
    min: 1,
    max: 8,
    value: page.params.clusters ?? "3",
  });
  const place = h("div", {});
  const ask = (event) => {
    event.preventDefault();
    if (word.value.trim())
      page.go("words", { run: model, word: word.value.trim(), clusters: clusters.value });
  };
  put(
    root,
    h("h2", {}, "Words"),
    h(
      "form",
      { class: "bar-of-fields", onsubmit: ask },
      pick("Model", models, model, (id) => {
        model = Number(id);
      }),
      h("label", { class: "field grows" }, h("span", {}, "Word"), word),
      h("label", { class: "field small" }, h("span", {}, "Clusters"), clusters),
      h("button", { type: "submit", class: "main" }, "Draw"),
    ),
    place,
  );
  if (!page.params.word) {
    put(
      place,
      nothing(
        "Where a word stands in the text you gave, each occurrence becomes a point; alike uses lie together.",
      ),
    );
    return;
  }
  put(place, h("p", { class: "quiet busy" }, "Reading the text and asking the model …"));
  const question = { word: page.params.word, run: model, clusters: Number(clusters.value) };
  const found = await page.source.words(question, page.signal);
  const side = h(
    "div",
    { class: "card around", "aria-live": "polite" },
    nothing("Choose a point to see its text and the nearest others."),
  );
  const drawn = h("div", { class: "card drawing" });
  put(place, h("div", { class: "two wide-first" }, drawn, side));
  const width = Math.max(300, Math.round(drawn.clientWidth - 24));
  const high = Math.round(Math.min(460, width * 0.75));
  const range = (at) => {
    const own = found.points.map((point) => point[at]);
    return [Math.min(...own), Math.max(...own)];
  };
  const [[left, right], [low, top]] = [range(0), range(1)];
  const x = ([value]) => 14 + ((width - 28) * (value - left)) / (right - left || 1);
  const y = ([, value]) => high - 14 - ((high - 28) * (value - low)) / (top - low || 1);
  const said = (at) => {
    const [before, own, after] = found.text[at];
    return h(
      "p",
      {},
      h("i", { class: `dot group-${found.label[at]}` }),
      "… ",
      before,
      h("mark", {}, own),
      after,
      " …",
    );
  };
  const dots = found.points.map((point, at) => {
    const choose = () => {
      dots.forEach((dot, other) => {
        dot.classList.toggle("chosen", other === at);
        dot.classList.toggle("near", found.near[at].includes(other));
      });
      put(
        side,
        h("h3", {}, "This occurrence"),
        said(at),
        h("h3", {}, "Nearest, by cosine"),
        [...new Set(found.near[at].map((other) => found.text[other].join("\u0000")))].map(
          (text) => {
            const alike = found.near[at].filter(
              (other) => found.text[other].join("\u0000") === text,
            );
            return [
              said(alike[0]),
              alike.length > 1 ? h("p", { class: "quiet" }, `× ${alike.length}`) : null,
            ];
          },
        ),
      );
    };
    const key = (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose();
      }
    };
    const told = found.text[at].join("").trim();
    return s(
      "circle",
      {
        class: `point group-${found.label[at]}`,
        cx: x(point),
        cy: y(point),
        r: 5.5,
        tabindex: 0,
        role: "button",
        "aria-label": told,
        onclick: choose,
        onkeydown: key,
      },
      s("title", {}, told),
    );
  });
  const legend = found.labels.map((label, at) =>
    h("span", {}, h("i", { class: `dot group-${at}` }), label),
  );
  put(
    drawn,
    h("p", { class: "legend" }, legend),
    s(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${width} ${high}`,
        role: "group",
        "aria-label": `Occurrences of ${found.word}`,
      },
      dots,
    ),
    h(
      "p",
      { class: "quiet" },
      `${found.points.length} occurrences, ${found.projection}; colours: clusters of the vectors.`,
    ),
  );
}
