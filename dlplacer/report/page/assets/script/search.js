// Search over all ops, modules and tensors; the timeline zooms to the chosen one.

const MOST_FOUND = 60;

function searchBox() {
  const list = make("div", { id: "found", role: "listbox", hidden: true });
  const input = make("input", { id: "search", type: "search", placeholder: "Search ops, modules, tensors", spellcheck: false, autocomplete: "off" });
  input.setAttribute("aria-label", "Search ops, modules and tensors");
  input.setAttribute("aria-controls", "found");
  let found = [];
  let active = 0;
  const draw = () => {
    list.hidden = !input.value.trim();
    list.replaceChildren(...found.slice(0, MOST_FOUND).map((hit, position) => foundRow(hit, position === active, () => go(position))), found.length ? "" : make("p", { className: "muted" }, "nothing of this name"));
    if (found.length > MOST_FOUND) list.append(make("p", { className: "muted" }, `${found.length - MOST_FOUND} more`));
    list.children[active]?.scrollIntoView({ block: "nearest" });
  };
  const go = (position) => {
    if (!found[position]) return;
    found[position].go();
    list.hidden = true;
    input.blur();
  };
  input.addEventListener("input", () => {
    found = input.value.trim() ? find(input.value.trim()) : [];
    active = 0;
    draw();
  });
  input.addEventListener("focus", () => found.length && draw());
  input.addEventListener("blur", () => setTimeout(() => (list.hidden = true), 150));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      input.value = "";
      found = [];
      list.hidden = true;
      input.blur();
    } else if (event.key === "Enter") go(active);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      active = Math.max(0, Math.min(Math.min(found.length, MOST_FOUND) - 1, active + (event.key === "ArrowDown" ? 1 : -1)));
      event.preventDefault();
      draw();
    }
    event.stopPropagation();
  });
  return make("div", { className: "search" }, input, list);
}

function foundRow(hit, active, take) {
  // On press, because the box loses the focus before a click is done.
  const press = (event) => {
    event.preventDefault();
    take();
  };
  const row = make("div", { className: active ? "hit active" : "hit", role: "option", onpointerdown: press }, make("span", { className: "what" }, hit.what), named(hit.name), make("span", { className: "muted" }, hit.note));
  row.setAttribute("aria-selected", String(active));
  return row;
}

// Whole names first, then beginnings, then other parts; modules before ops before tensors.
function find(text) {
  const wanted = text.toLowerCase();
  const hits = [];
  const offer = (name, order, describe) => {
    const lower = name.toLowerCase();
    const at = lower.indexOf(wanted);
    if (at >= 0) hits.push({ rank: (lower === wanted ? 0 : at === 0 ? 10 : 20) + order, name, ...describe() });
  };
  for (const schedule of shownSchedules().slice(0, 1)) {
    for (const [path, node] of modulesOf(schedule).known) {
      if (path) offer(path, 0, () => ({ what: "module", note: `${node.count} ops`, go: () => (state.lit?.module === path ? undefined : lightModule(path)) }));
    }
  }
  shownSchedules().forEach((schedule, position) => offerSchedule(schedule, position, offer));
  return hits.sort((one, other) => one.rank - other.rank || one.name.length - other.name.length);
}

function offerSchedule(schedule, position, offer) {
  const others = shownSchedules().slice(0, position);
  for (let event = 0; event < schedule.ops.count; event += 1) {
    const name = opName(schedule, event);
    if (others.some((other) => nameIndex(other.graph).has(name))) continue;
    offer(name, 1, () => ({
      what: "op",
      note: `${texts[schedule.graph.kind[schedule.ops.op[event]]]} · ${schedule.devices.name[schedule.ops.device[event]]}`,
      go: () => goTo({ schedule: schedule.number, type: "op", index: event }),
    }));
  }
  for (let transfer = 0; transfer < schedule.transfers.count; transfer += 1) {
    offer(tensorName(schedule, transfer), 2, () => ({
      what: "tensor",
      note: `to ${schedule.devices.name[schedule.transfers.target[transfer]]}${suffix(schedule)}`,
      go: () => goTo({ schedule: schedule.number, type: "transfer", index: transfer }),
    }));
  }
}

function goTo(selected) {
  select(selected);
  emit("reveal", selected);
  showEvent(selected);
}
