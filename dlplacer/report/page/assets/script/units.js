// Quantities in readable form, by the same rules as dlplacer.core.units.

const SECONDS = [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]];
const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
const RATES = [["PB/s", 1e15], ["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3], ["B/s", 1]];
const COUNTS = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]];

function scaled(value, units) {
  if (!value) return `0 ${units.length === SECONDS.length ? "s" : units[units.length - 1][0]}`.trim();
  const [unit, factor] = units.find(([, size]) => Math.abs(value) >= size * 0.99995) || units[units.length - 1];
  return `${Number((value / factor).toPrecision(4))} ${unit}`.trim();
}

const formatSeconds = (value) => scaled(value, SECONDS);
const formatBytes = (value) => (value === null ? "unlimited" : scaled(value, SIZES));
const formatRate = (value) => scaled(value, RATES);
const formatCount = (value) => scaled(value, COUNTS);
const formatShare = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "");

// Times of the data are in units of the page.
const seconds = (units) => formatSeconds(units * data.unitS);
// Two equal times that are rounded one by one may seem a unit apart.
const between = (earlier, later) => (Math.abs(later - earlier) <= 2 ? 0 : later - earlier);
const signedSeconds = (units) => (units > 0 ? "+" : units < 0 ? "−" : "") + seconds(Math.abs(units));

// "1.5ms", "2 MiB" or "1GB/s" → SI; plain numbers stay; NaN for anything else.
function parseQuantity(text) {
  const match = /^([-+]?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-zµμ/]*)$/i.exec(text.trim().replace("−", "-"));
  if (!match) return NaN;
  const unit = match[2].toLowerCase().replace(/[µμ]s/, "us");
  if (!unit) return Number(match[1]);
  const found = [...SECONDS, ...SIZES, ["kb", 1e3], ["mb", 1e6], ["gb", 1e9], ...RATES, ...COUNTS].find(([name]) => name.toLowerCase() === unit);
  return found ? Number(match[1]) * found[1] : NaN;
}
