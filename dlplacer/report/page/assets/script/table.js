// A table of any length: sorted by a click on a head, filtered while typing; only visible rows are elements.

const ROW = 24;
const AROUND = 8;

const SHOWN = {
  time: (value) => seconds(value),
  signed: (value) => signedSeconds(value),
  bytes: (value) => formatBytes(value),
  rate: (value) => formatRate(value),
  number: (value) => (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)))),
  count: (value) => formatCount(value),
  share: (value) => `${(100 * value).toFixed(1)} %`,
  ratio: (value) => `${value.toFixed(3)}×`,
};

function cellText(column, row) {
  const value = column.value(row);
  if (!column.unit) return value;
  if (value === null || value === undefined || Number.isNaN(value)) return column.missing ?? "–";
  return SHOWN[column.unit](value);
}

// columns: [{name, value(row), unit?, width?, color?(row), bar?(row)}]; `choose(row)` on click; `isChosen(row)` marks.
class VirtualTable {
  constructor({ label, columns, count, choose, isChosen, sort, descending }) {
    Object.assign(this, { label, columns, count, choose, isChosen });
    this.sorted = { column: columns.find((column) => column.name === sort) || null, descending: Boolean(descending) };
    this.active = -1;
    this.build();
    this.refresh();
  }

  build() {
    this.filter = make("input", { type: "search", placeholder: this.placeholder(), spellcheck: false, oninput: () => this.refresh() });
    this.filter.setAttribute("aria-label", `Filter ${this.label}`);
    this.status = make("span", { className: "status", role: "status" });
    const copy = button("CSV", "Download the rows shown as CSV", () => this.download());
    this.heads = this.columns.map((column) => {
      const head = button(column.name, `Sort by ${column.name}`, () => this.sortBy(column), { className: column.unit ? "number" : "" });
      head.setAttribute("role", "columnheader");
      return head;
    });
    this.spacer = make("div", { className: "spacer" });
    // One listener for all rows, by the pointer's place: a row may be rebuilt between press and release.
    const pickAt = (event) => this.pick(this.first + Math.floor((event.clientY - this.body.getBoundingClientRect().top) / ROW));
    this.body = make("div", { className: "body", role: "rowgroup", onclick: pickAt });
    this.scroller = make("div", { className: "scroll", tabIndex: 0, role: "grid", onkeydown: (event) => this.key(event) });
    this.scroller.setAttribute("aria-label", this.label);
    this.scroller.append(make("div", { className: "heads", role: "row" }, this.heads), this.spacer, this.body);
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element = make("div", { className: "table" }, make("div", { className: "bar" }, this.filter, this.status, copy), this.scroller);
    this.element.style.setProperty("--columns", this.columns.map((column) => `${column.width || (column.unit ? 92 : 170)}px`).join(" "));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
  }

  placeholder() {
    const text = this.columns.find((column) => !column.unit);
    const number = this.columns.find((column) => column.unit === "time") || this.columns.find((column) => column.unit === "bytes");
    const moved = this.columns.some((column) => column.name === "moved") ? ", moved:yes" : "";
    return `Filter: words, ${text?.name ?? "name"}:…${number ? `, ${number.name}>${example(number)}` : ""}${moved}`;
  }

  refresh() {
    const { test, error } = compileQuery(this.filter.value, this.columns);
    this.filter.classList.toggle("wrong", Boolean(error));
    const rowsShown = Array.from({ length: this.count }, (_, row) => row);
    this.shown = test ? rowsShown.filter(test) : rowsShown;
    const { column, descending } = this.sorted;
    if (column) this.sortRows(column, descending ? -1 : 1);
    this.status.textContent = error || (this.shown.length === this.count ? `${this.count}` : `${this.shown.length} of ${this.count}`);
    this.heads.forEach((head, position) => {
      const own = this.columns[position] === column;
      head.setAttribute("aria-sort", own ? (descending ? "descending" : "ascending") : "none");
    });
    this.spacer.style.height = `${this.shown.length * ROW}px`;
    this.active = -1;
    this.draw();
  }

  sortRows(column, direction) {
    const keys = new Map(this.shown.map((row) => [row, column.value(row)]));
    const missing = (value) => value === null || value === undefined || Number.isNaN(value);
    this.shown.sort((one, other) => {
      const [left, right] = [keys.get(one), keys.get(other)];
      if (missing(left) || missing(right)) return missing(left) - missing(right) || one - other;
      if (left === right) return one - other;
      return direction * (column.unit ? left - right : left < right ? -1 : 1);
    });
  }

  sortBy(column) {
    const again = this.sorted.column === column;
    this.sorted = { column, descending: again ? !this.sorted.descending : Boolean(column.unit) };
    this.refresh();
    this.scroller.scrollTop = 0;
  }

  draw() {
    if (!this.scroller.clientHeight) return;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - AROUND);
    const last = Math.min(this.shown.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / ROW) + AROUND);
    this.first = first;
    this.body.style.transform = `translateY(${first * ROW}px)`;
    this.body.replaceChildren(...this.shown.slice(first, last).map((row, offset) => this.row(row, first + offset)));
  }

  row(row, position) {
    const cells = this.columns.map((column) => {
      const text = cellText(column, row);
      const content = [named(text)];
      if (column.color) content.unshift(make("i", { className: "swatch", style: { background: column.color(row) } }));
      return make("span", { className: column.unit ? "cell number" : "cell", role: "gridcell", title: column.unit ? undefined : text }, content);
    });
    const classes = ["row", this.isChosen?.(row) ? "chosen" : "", position === this.active ? "active" : ""].filter(Boolean).join(" ");
    return make("div", { className: classes, role: "row" }, cells);
  }

  pick(position) {
    if (position < 0 || position >= this.shown.length) return;
    this.active = position;
    this.choose?.(this.shown[position]);
    this.draw();
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const wanted = Math.max(0, Math.min(this.shown.length - 1, this.active + moves[event.key]));
    const top = wanted * ROW;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + 2 * ROW > this.scroller.scrollTop + this.scroller.clientHeight) this.scroller.scrollTop = top + 2 * ROW - this.scroller.clientHeight;
    this.pick(wanted);
  }

  // Scrolls a row into view if it passes the filter.
  reveal(row) {
    const position = this.shown.indexOf(row);
    if (position < 0) return this.draw();
    const top = position * ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop || top + 2 * ROW > scrollTop + clientHeight) this.scroller.scrollTop = Math.max(0, top - clientHeight / 2);
    this.active = position;
    return this.draw();
  }

  download() {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
    const value = (column, row) => {
      const found = column.value(row);
      if (found === null || found === undefined || Number.isNaN(found)) return "";
      return column.unit === "time" || column.unit === "signed" ? String(found * data.unitS) : quoted(String(found));
    };
    const head = this.columns.map((column) => quoted(column.unit === "time" || column.unit === "signed" ? `${column.name} (s)` : column.name));
    const lines = [head.join(","), ...this.shown.map((row) => this.columns.map((column) => value(column, row)).join(","))];
    const url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    make("a", { href: url, download: `${this.label.toLowerCase().replace(/\W+/g, "-")}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}
