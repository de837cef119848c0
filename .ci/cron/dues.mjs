// Prints when a library finds cron texts due, from 2026 to 2035: node dues.mjs LIBRARY >FILE
// A line is a text in a zone: {library, text, zone, spans: [[from, to], ...], dues: [...]}, in minutes since 1970.
import { Cron } from "croner";
import { CronExpressionParser } from "cron-parser";

const minute = 60000, hour = 60 * minute, day = 24 * hour;
const begin = Date.UTC(2026, 0, 1), end = Date.UTC(2036, 0, 1);
const zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"];

const libraries = {
  croner(text, zone) {
    const options = { timezone: zone, mode: "5-part", domAndDow: true, fixedTimeRule: "no-wildcard", sloppyRanges: true, paused: true };
    const job = new Cron(text, options);
    return (after) => job.nextRun(new Date(after))?.getTime();
  },
  "cron-parser"(text, zone) {
    let expression, last;
    return (after) => {
      if (!expression || last !== after) expression = CronExpressionParser.parse(text, { tz: zone, currentDate: new Date(after) });
      try {
        return (last = expression.next().getTime());
      } catch {
        return undefined; // it knows none
      }
    };
  },
};

// Texts that are tried for all minutes of the ten years. Others are due too often: they are tried for the ten hours around each change
// of a clock, and for as many of each year.
const sparse = [
  "@daily", "@weekly", "@monthly", "@yearly",
  "30 4 * * *", "0 9-17/4 * * MON,WED-THU", "59 23 31 DEC *", "0 0 1 */3 *", "10/25 6 */10 * *", "0 3 * JAN,OCT-DEC 7", "0 0 31 * *",
  "0 0 29 2 *", "0 5 * * 5-7", "0 5 * * 1-7/3", "0 5 * 2/5 1/2", "15 12 1-7 * 1", "0 0 13 * FRI", "0 6 */2 * 3",
  "30 2 * * *", "0 1,2 * * 0", "0,15,30,45 1-3 * MAR-APR,10,11 7", "*/20 2 * * SUN",
];
const dense = ["* * * * *", "*/5 * * * *", "@hourly", "7 * * * *", "0,30 * * * *", "*/17 */3 * * *", "*/30 1-3 * * *", "0,30 1-3 * * *", "5-10 2 * * *", "0-59/10 0-4 * * *", "*/15 0-3 * * sun"];

// offset returns by how much the clock of a zone differs from UTC.
const formats = new Map(zones.map((zone) => [zone, new Intl.DateTimeFormat("en", { timeZone: zone, timeZoneName: "longOffset" })]));
const offset = (zone, at) => formats.get(zone).formatToParts(at).find((part) => part.type === "timeZoneName").value;

// around returns the spans around each change, and others in July.
function around(zone) {
  const spans = [];
  for (let at = begin + day; at < end; at += day) {
    if (offset(zone, at) !== offset(zone, at - day)) {
      let change = at - day;
      while (offset(zone, change) === offset(zone, at - day)) change += hour;
      spans.push([change - 5 * hour, change + 5 * hour]);
    }
    const date = new Date(at);
    if (date.getUTCMonth() === 6 && date.getUTCDate() === 1) spans.push([at, at + 10 * hour]);
  }
  return spans;
}

const library = process.argv[2];
for (const zone of zones) {
  // There, cron-parser finds no more dues of many texts after a change by half an hour.
  if (library === "cron-parser" && zone === "Australia/Lord_Howe") continue;
  const changes = around(zone);
  for (const text of [...sparse, ...dense]) {
    const spans = dense.includes(text) ? changes : [[begin, end]];
    const next = libraries[library](text, zone);
    const dues = [];
    for (const [from, to] of spans) {
      for (let at = next(from); at !== undefined && at <= to; at = next(at)) dues.push(at / minute);
    }
    console.log(JSON.stringify({ library, text, zone, spans: spans.map((span) => span.map((at) => at / minute)), dues }));
  }
}
