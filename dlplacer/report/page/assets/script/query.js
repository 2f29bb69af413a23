// Filters of tables: words that a row must contain, and conditions such as kind:conv, time>1ms, device!=gpu0.

const CONDITION = /^([a-zµ ]+?)(!=|>=|<=|=|:|>|<)(.+)$/i;

// The test of a row position, or an error text.
function compileQuery(text, columns) {
  const tests = [];
  for (const word of text.match(/"[^"]*"|\S+/g) || []) {
    const bare = word.replace(/"/g, "");
    const match = CONDITION.exec(bare);
    const column = match && columns.find((each) => each.name.toLowerCase() === match[1].toLowerCase().trim());
    if (column) {
      const test = condition(column, match[2], match[3]);
      if (!test) return { error: `${column.name} ${match[2]} wants a number, as in ${column.name}${match[2]}${column.unit === "bytes" ? "1MiB" : "1ms"}` };
      tests.push(test);
    } else tests.push(contains(columns, bare.toLowerCase()));
  }
  return { test: (row) => tests.every((test) => test(row)) };
}

function contains(columns, word) {
  const searched = columns.filter((column) => !column.unit);
  return (row) => searched.some((column) => column.value(row).toLowerCase().includes(word));
}

function condition(column, operator, text) {
  if (!column.unit) {
    const wanted = text.toLowerCase();
    const tests = {
      ":": (value) => value.includes(wanted),
      "=": (value) => value === wanted,
      "!=": (value) => value !== wanted,
    };
    const test = tests[operator];
    return test && ((row) => test(column.value(row).toLowerCase()));
  }
  const wanted = parseQuantity(text) / (column.unit === "time" ? data.unitS : 1);
  const tests = {
    ">": (value) => value > wanted,
    "<": (value) => value < wanted,
    ">=": (value) => value >= wanted,
    "<=": (value) => value <= wanted,
    "=": (value) => value === wanted,
    ":": (value) => value === wanted,
    "!=": (value) => value !== wanted,
  };
  return Number.isNaN(wanted) ? null : (row) => tests[operator](column.value(row));
}
