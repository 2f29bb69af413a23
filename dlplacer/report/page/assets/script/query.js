// Filters of tables: words that a row must contain, and conditions on columns such as kind:conv, time>1ms, device!=gpu0.

const OPERATORS = "!=|>=|<=|=|:|>|<";

// {test} of a row, or {error}: a text that explains the mistake.
function compileQuery(text, columns) {
  const tests = [];
  let error = null;
  const escaped = columns.map(({ name }) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).sort((one, other) => other.length - one.length);
  const conditions = new RegExp(`(^|\\s)(${escaped.join("|")})\\s*(${OPERATORS})\\s*("[^"]*"|\\S+)`, "gi");
  const words = text.replace(conditions, (_, space, name, operator, value) => {
    const column = columns.find((each) => each.name.toLowerCase() === name.toLowerCase());
    const test = condition(column, operator, unquoted(value));
    if (test) tests.push(test);
    else error = column.unit ? `${column.name} is a number, as in ${column.name}>${example(column)}` : `${column.name} is a text, as in ${column.name}:part`;
    return space;
  });
  for (const word of words.match(/"[^"]*"|\S+/g) || []) tests.push(contains(columns, unquoted(word).toLowerCase()));
  return error ? { error } : { test: (row) => tests.every((test) => test(row)) };
}

const unquoted = (text) => text.replace(/^"(.*)"$/, "$1");
const example = ({ unit }) => ({ time: "1ms", signed: "1ms", bytes: "1MiB", rate: "1GB/s", share: "10%" })[unit] ?? "1";

function contains(columns, word) {
  const searched = columns.filter((column) => !column.unit);
  return (row) => searched.some((column) => column.value(row).toLowerCase().includes(word));
}

const TEXT_TESTS = {
  ":": (value, wanted) => value.includes(wanted),
  "=": (value, wanted) => value === wanted,
  "!=": (value, wanted) => value !== wanted,
};
const NUMBER_TESTS = {
  ">": (value, wanted) => value > wanted,
  "<": (value, wanted) => value < wanted,
  ">=": (value, wanted) => value >= wanted,
  "<=": (value, wanted) => value <= wanted,
  "=": (value, wanted) => value === wanted,
  ":": (value, wanted) => value === wanted,
  "!=": (value, wanted) => value !== wanted,
};

function condition(column, operator, text) {
  if (!column.unit) {
    const test = TEXT_TESTS[operator];
    return test && ((row) => test(column.value(row).toLowerCase(), text.toLowerCase()));
  }
  const wanted = parseQuantity(column.unit === "share" ? text.replace(/%$/, "") : text) / (column.unit === "time" || column.unit === "signed" ? data.unitS : column.unit === "share" ? 100 : 1);
  if (Number.isNaN(wanted)) return null;
  return (row) => {
    const value = column.value(row);
    return value !== null && value !== undefined && NUMBER_TESTS[operator](value, wanted);
  };
}
