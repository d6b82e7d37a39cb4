// Notices of an alert: the people and receivers that got it, by which channel and when. The list is
// loaded when a person opens it, and each look is in the audit log.
import { h, setText } from "../dom";
import { clock, seconds } from "../clinical";
import { NoticeReason, NoticeResult, type NoticeRecord } from "../gen/braid/alerts/v1/alerts_pb";
import { many, t, term } from "../text";

// Notices that are shown, the newest; further ones are counted.
const SHOWN_MAX = 50;
const REASONS: Record<number, string> = {
  [NoticeReason.NEWS]: term("news"),
  [NoticeReason.ESCALATION]: term("escalation"),
  [NoticeReason.REMINDER]: term("reminder"),
};

export function toldView(load: () => Promise<readonly NoticeRecord[]>): HTMLElement {
  const list = h("ul", {});
  const more = h("p", { class: "dim" });
  const state = h("p", { class: "dim", role: "status" });
  const element = h("details", { class: "told" }, h("summary", {}, t("Who was told")), state, list, more);
  element.addEventListener("toggle", () => {
    if (!element.open) return;
    setText(state, t("Loading…"));
    load().then(
      (records) => {
        const newest = [...records].sort((a, b) => Number(createdUs(b) - createdUs(a)));
        list.replaceChildren(...newest.slice(0, SHOWN_MAX).map((it) => h("li", {}, lineOf(it))));
        setText(state, records.length === 0 ? t("Nobody was told about this alert.") : "");
        const left = records.length - SHOWN_MAX;
        setText(more, left > 0 ? many(left, "{count} more not shown", "{count} more not shown") : "");
      },
      (error: unknown) => setText(state, error instanceof Error ? error.message : String(error)),
    );
  });
  return element;
}

const createdUs = ({ notice }: NoticeRecord): bigint => notice?.createdUs ?? 0n;

// lineOf is one notice: time, channel, receivers, cause and outcome.
function lineOf({ notice, outcome }: NoticeRecord): string {
  if (!notice) return "";
  const whom = [notice.people.join(", "), notice.recipient].filter(Boolean).join(" · ");
  const because = notice.step > 0 ? `${t(REASONS[notice.reason] ?? "")}, ${t("step {step}", { step: notice.step })}` : t(REASONS[notice.reason] ?? "");
  return [clock(seconds(notice.createdUs)), notice.channel, whom, because, outcomeOf(outcome)].filter(Boolean).join(" · ");
}

function outcomeOf(outcome: NoticeRecord["outcome"]): string {
  if (!outcome) return t("on its way");
  const time = clock(seconds(outcome.atUs));
  switch (outcome.result) {
    case NoticeResult.DELIVERED:
      return t("delivered {time}", { time });
    case NoticeResult.GIVEN_UP:
      return t("not delivered: {why}", { why: outcome.detail || time });
    case NoticeResult.SILENCED:
      return t("silenced");
    default:
      return t("another alert says the same and more");
  }
}
