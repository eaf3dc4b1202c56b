// The list of conversations cut by how long ago they were touched: today, yesterday, a week, a month, and then by month.
import { month, t } from "./i18n.ts";
import type { Conversation } from "./protocol.ts";

const DAY = 24 * 3600 * 1000;

export interface Group {
  label: string;
  conversations: Conversation[];
}

/** `conversations` newest first, and so are the groups. */
export function byDate(conversations: readonly Conversation[], now: Date): Group[] {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const groups: Group[] = [];
  for (const conversation of conversations) {
    const label = labelOf(new Date(conversation.updated_at), midnight);
    const last = groups.at(-1);
    if (last?.label === label) last.conversations.push(conversation);
    else groups.push({ label, conversations: [conversation] });
  }
  return groups;
}

function labelOf(date: Date, midnight: number): string {
  const at = date.getTime();
  if (at >= midnight) return t("date.today");
  if (at >= midnight - DAY) return t("date.yesterday");
  if (at >= midnight - 7 * DAY) return t("date.week");
  if (at >= midnight - 30 * DAY) return t("date.month");
  return month(date);
}
