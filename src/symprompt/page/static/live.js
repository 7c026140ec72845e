// Live: how far a training is, and its curves, as they come.

import { h, nothing, number, pick, put, s } from "./dom.js";

// Figures of a history that are stored under short names.
const NAMES = {
  "dev forth": "dev, object prompt",
  "dev back": "dev, subject prompt",
  "dev second": "dev, second subject prompt",
  "dev third": "dev, third subject prompt",
};

/** Draw one curve with its first, last and best values. */
function curve(name, line) {
  const [wide, high, edge] = [340, 170, 30];
  const xs = line.map(([x]) => x);
  const ys = line.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, top] = [Math.min(...ys), Math.max(...ys)];
  const x = (value) => 44 + ((wide - 60) * (value - left)) / (right - left || 1);
  const y = (value) => high - edge - ((high - edge - 14) * (value - low)) / (top - low || 1);
  const path = line
    .map(([a, b], at) => `${at ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`)
    .join("");
  const last = line[line.length - 1];
  const digits = top < 10 ? 3 : 1;
  const told = `${name}: ${number(ys[0], digits)} at ${xs[0]}, ${number(last[1], digits)} at ${last[0]}`;
  return h(
    "figure",
    { class: "card curve" },
    h("figcaption", {}, name, " ", h("b", {}, number(last[1], digits))),
    s(
      "svg",
      { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": told },
      [low, top].map((tick) => [
        s("line", { class: "grid", x1: 44, x2: wide - 16, y1: y(tick), y2: y(tick) }),
        s("text", { x: 38, y: y(tick) + 4, "text-anchor": "end" }, number(tick, digits)),
      ]),
      [left, right].map((tick, at) =>
        s(
          "text",
          { x: x(tick), y: high - 8, "text-anchor": at ? "end" : "start" },
          tick.toLocaleString("en"),
        ),
      ),
      s("path", { class: "line", d: path }),
      s("circle", { class: "point run-0", cx: x(last[0]), cy: y(last[1]), r: 4 }),
    ),
  );
}

function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Draw the view. */
export async function liveView(root, page) {
  const runs = page.about.runs.filter((own) => own.live);
  const run =
    runs.find((own) => String(own.id) === page.params.run) ??
    runs.find((own) => own.kind === "training") ??
    runs[0];
  const place = h("div", {}, nothing("Waiting for the run …"));
  put(
    root,
    h("h2", {}, "Live"),
    h(
      "div",
      { class: "bar-of-fields" },
      pick("Run", runs, run.id, (id) => page.go("live", { run: id })),
    ),
    place,
  );
  const told = (now) => {
    if (now.error) {
      put(place, h("p", { class: "error", role: "alert" }, now.error));
      return;
    }
    const names = Object.keys(now.curves);
    const done = now.state === "finished";
    const share = done ? 1 : now.total ? now.done / now.total : 0;
    const left =
      !done && share > 0 && now.seconds
        ? `, about ${duration((now.seconds * (1 - share)) / share)} left`
        : "";
    const line = done
      ? `finished; trained for ${duration(now.seconds)}`
      : now.total
        ? `${now.stage ?? "training"}: step ${now.done.toLocaleString("en")} of ${now.total.toLocaleString("en")}${now.note ? ", " + now.note : ""}; ${duration(now.seconds)}${left}`
        : names.length
          ? "trained; what it learned is being measured"
          : "begun; no step was noted yet";
    put(
      place,
      h("p", { class: "figures" }, h("b", {}, run.name), line),
      done && run.kind === "training"
        ? h("button", { type: "button", onclick: () => location.reload() }, "Read the finished run")
        : null,
      h("progress", { max: 1, value: share, "aria-label": "progress" }),
      h(
        "div",
        { class: "curves" },
        names.length
          ? names.map((name) => curve(NAMES[name] ?? name, now.curves[name]))
          : nothing("No evaluation yet."),
      ),
    );
    page.say(line);
  };
  const stop = page.source.live(run.id, told);
  page.signal.addEventListener("abort", stop);
}
