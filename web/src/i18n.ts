// The words of the interface, in the reader's language. They come with the page (web/locales), so another language is one more file.

export type Words = Readonly<Record<string, string>>;

let words: Words = {};
let language = "en";

export function speak(newLanguage: string, newWords: Words): void {
  language = newLanguage;
  words = newWords;
}

/** The text called `key`, its `{name}` replaced. A key that is missing shows itself, so that it is noticed. */
export function t(key: string, values: Readonly<Record<string, string | number>> = {}): string {
  const text = words[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name];
    return value === undefined ? whole : typeof value === "number" ? number(value) : value;
  });
}

export const has = (key: string): boolean => key in words;

export const number = (value: number, options: Intl.NumberFormatOptions = {}): string => new Intl.NumberFormat(language, options).format(value);

export const percent = (share: number): string => number(share, { style: "percent", maximumFractionDigits: 0 });

/** A duration in words, as exact as it is interesting: 0.3 s, 12 s, 4 min. */
export function duration(ms: number): string {
  const seconds = ms / 1000;
  if (seconds >= 90) return t("time.minutes", { n: number(Math.round(seconds / 60)) });
  const digits = seconds < 0.1 ? 2 : seconds < 10 ? 1 : 0;
  return t("time.seconds", { n: number(seconds, { maximumFractionDigits: digits }) });
}

export const month = (date: Date): string => new Intl.DateTimeFormat(language, { month: "long", year: "numeric" }).format(date);
