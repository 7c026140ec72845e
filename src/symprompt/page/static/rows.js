// A table of any number of rows of which only those in sight are elements.

import { h } from "./dom.js";

const HEIGHT = 34;
const SPARE = 8;

/**
 * A scrolled table; rows are filled when they come into sight.
 *
 * columns: [{title, size, narrow, fill(cell, item)}]; size is a CSS grid track, narrow: false hides
 * the column on a phone. open(item) is called by a click or Enter.
 */
export class Rows {
  #columns;
  #open;
  #items = [];
  #pool = [];
  #active = -1;
  #asked = false;
  #id = "rows" + Math.random().toString(36).slice(2, 8);

  constructor(label, columns, open = null) {
    this.#columns = columns;
    this.#open = open;
    this.head = h("div", { role: "row", class: "row head", "aria-rowindex": 1 });
    this.space = h("div", { class: "space", role: "rowgroup" });
    this.body = h(
      "div",
      {
        class: "rows",
        role: "grid",
        tabindex: 0,
        "aria-label": label,
        "aria-colcount": columns.length,
        onscroll: () => this.#later(),
        onkeydown: (event) => this.#key(event),
      },
      h("div", { role: "rowgroup", class: "heads" }, this.head),
      this.space,
    );
    this.element = this.body;
    for (const own of columns) {
      const told = { role: "columnheader", class: this.#classOf(own) };
      this.head.append(h("span", told, own.title));
    }
    // Tracks of columns that a phone does not show are left out there.
    const tracks = (kept) => kept.map((own) => own.size ?? "1fr").join(" ");
    this.body.style.setProperty("--tracks", tracks(columns));
    const kept = columns.filter((own) => own.narrow !== false);
    this.body.style.setProperty("--few-tracks", tracks(kept));
    new ResizeObserver(() => this.#later()).observe(this.body);
  }

  #classOf(column) {
    return [column.class ?? "", column.narrow === false ? "wide" : ""].join(" ").trim() || null;
  }

  /** Show other items, from the first one on unless told to stay. */
  show(items, stay = false) {
    this.#items = items;
    this.#active = -1;
    this.body.removeAttribute("aria-activedescendant");
    this.body.setAttribute("aria-rowcount", items.length + 1);
    this.space.style.height = `${items.length * HEIGHT}px`;
    if (!stay) this.body.scrollTop = 0;
    for (const row of this.#pool) row.place = -1;
    this.#draw();
  }

  #later() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#draw();
    });
  }

  #draw() {
    const seen = Math.ceil((this.body.clientHeight || 600) / HEIGHT) + SPARE;
    while (this.#pool.length < seen) this.#pool.push(this.#make());
    const size = this.#pool.length;
    const wanted = Math.floor(this.body.scrollTop / HEIGHT) - SPARE / 2;
    const start = Math.max(0, Math.min(wanted, this.#items.length - seen));
    for (let place = start; place < start + size; place++) {
      // A row keeps its element as long as it is in sight.
      const row = this.#pool[place % size];
      if (row.place === place) continue;
      row.place = place;
      const there = place < this.#items.length;
      row.element.hidden = !there;
      if (there) this.#fill(row, place);
    }
  }

  #make() {
    const cells = this.#columns.map((own) =>
      h("span", { role: "gridcell", class: this.#classOf(own) }),
    );
    const element = h("div", { role: "row", class: "row", hidden: true }, cells);
    const row = { element, cells, place: -1 };
    element.addEventListener("click", () => this.#choose(row.place, true));
    this.space.append(element);
    return row;
  }

  #fill(row, place) {
    row.element.style.transform = `translateY(${place * HEIGHT}px)`;
    row.element.id = `${this.#id}-${place}`;
    row.element.setAttribute("aria-rowindex", place + 2);
    row.element.classList.toggle("active", place === this.#active);
    row.element.classList.toggle("odd", place % 2 === 1);
    this.#columns.forEach((own, at) => own.fill(row.cells[at], this.#items[place]));
  }

  #choose(place, open) {
    if (place < 0 || place >= this.#items.length) return;
    this.#active = place;
    const top = place * HEIGHT;
    const room = this.body.clientHeight - 2 * HEIGHT;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top > this.body.scrollTop + room) this.body.scrollTop = top - room;
    for (const row of this.#pool) row.element.classList.toggle("active", row.place === place);
    this.#draw();
    this.body.setAttribute("aria-activedescendant", `${this.#id}-${place}`);
    if (open && this.#open) this.#open(this.#items[place]);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / HEIGHT) - 2);
    const last = this.#items.length - 1;
    const now = this.#active;
    const to = {
      ArrowDown: Math.min(last, now + 1),
      ArrowUp: Math.max(0, now - 1),
      PageDown: Math.min(last, now + page),
      PageUp: Math.max(0, now - page),
      Home: 0,
      End: last,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.#choose(to, false);
    } else if (event.key === "Enter" && now >= 0 && this.#open) {
      event.preventDefault();
      this.#open(this.#items[now]);
    }
  }
}
