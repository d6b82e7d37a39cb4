// The record of a patient in words and in a form, both in the forms of `braid patients`.
import { create } from "@bufbuild/protobuf";
import { PatientSchema, PatientStatus, PlaceSchema, Sex, type Likeness, type Patient, type Place } from "../gen/braid/patients/v1/patients_pb";
import { t, term } from "../text";
import type { Field, Values } from "./change";
import { moment } from "./context";

export const STATUSES: Readonly<Record<number, string>> = {
  [PatientStatus.EXPECTED]: term("expected"),
  [PatientStatus.ADMITTED]: term("admitted"),
  [PatientStatus.PAUSED]: term("paused"),
  [PatientStatus.DISCHARGED]: term("discharged"),
  [PatientStatus.DIED]: term("died"),
};
const SEXES: readonly (readonly [Sex, string])[] = [
  [Sex.UNSPECIFIED, term("not recorded")],
  [Sex.FEMALE, term("female")],
  [Sex.MALE, term("male")],
  [Sex.OTHER, term("other")],
  [Sex.UNKNOWN, term("unknown")],
];

export const statusText = ({ status, mergedInto }: Patient): string => (mergedInto === "" ? t(STATUSES[status] ?? "") : t("merged into {patient}", { patient: mergedInto }));

export const placeText = (place: Place | undefined): string => [place?.site, place?.ward, place?.room, place?.bed].filter(Boolean).join(", ");

const identifiersText = ({ identifiers }: Patient): string => identifiers.map(({ system, value }) => `${system}=${value}`).join("; ");
const contactsText = ({ contacts }: Patient): string => contacts.map(({ name, relation, address }) => `${name}, ${relation}, ${address}`).join("; ");
const consentsText = ({ consents }: Patient): string => consents.map(({ purpose, given }) => `${purpose}=${given ? "yes" : "no"}`).join("; ");
const sexText = ({ sex }: Patient): string => (sex === Sex.UNSPECIFIED ? "" : t(SEXES.find(([key]) => key === sex)?.[1] ?? ""));
const scaleText = ({ spo2Scale, spo2ScaleBy, spo2ScaleAtUs }: Patient): string => (spo2Scale === 2 ? t("2, prescribed by {name} {time}", { name: spo2ScaleBy, time: moment(spo2ScaleAtUs) }) : "1");

// rowsOf is every detail of a record with its label.
export function rowsOf(patient: Patient): readonly (readonly [label: string, text: string])[] {
  return [
    [t("Name"), patient.name],
    [t("Status"), statusText(patient)],
    [t("Birth date"), patient.birthDate],
    [t("Sex"), sexText(patient)],
    [t("Identifiers"), identifiersText(patient)],
    [t("Place"), placeText(patient.place)],
    [t("Language"), patient.language],
    [t("Time zone"), patient.timeZone],
    [t("SpO₂ scale"), scaleText(patient)],
    [t("Contacts"), contactsText(patient)],
    [t("Consents"), consentsText(patient)],
  ];
}

// changesOf says which details differ between two states of a record.
export function changesOf(before: Patient | undefined, after: Patient): string[] {
  const old = before ? rowsOf(before) : [];
  return rowsOf(after).flatMap(([label, text], i) => {
    const was = old[i]?.[1] ?? "";
    if (was === text) return [];
    const empty = t("nothing");
    return before ? t("{label}: {before} → {after}", { label, before: was || empty, after: text || empty }) : `${label}: ${text}`;
  });
}

export function likenessText({ patient, other, otherName, otherBirthDate, because }: Likeness): string {
  const born = otherBirthDate === "" ? "" : `, ${otherBirthDate}`;
  return t("{patient} may be taken for {other} ({name}): {because}", { patient, other, name: `${otherName}${born}`, because });
}

export function placeFields(place: Place | undefined): Field[] {
  return [
    { name: "site", label: t("Site"), value: place?.site ?? "" },
    { name: "ward", label: t("Ward"), value: place?.ward ?? "" },
    { name: "room", label: t("Room"), value: place?.room ?? "" },
    { name: "bed", label: t("Bed"), value: place?.bed ?? "" },
  ];
}

export function detailFields(patient: Patient | undefined): Field[] {
  const it = patient ?? create(PatientSchema);
  return [
    { name: "name", label: t("Name"), value: it.name, required: true },
    { name: "birthDate", label: t("Birth date"), type: "date", value: it.birthDate },
    { name: "sex", label: t("Sex"), type: "select", value: String(it.sex), options: SEXES.map(([key, text]) => [String(key), t(text)]) },
    { name: "identifiers", label: t("Identifiers"), value: identifiersText(it), hint: t("As SYSTEM=VALUE, several separated by ;") },
    ...placeFields(it.place),
    { name: "language", label: t("Language"), value: it.language, hint: t("For example de or de-AT") },
    { name: "timeZone", label: t("Time zone"), value: it.timeZone, hint: t("For example Europe/Berlin") },
    { name: "scale", label: t("SpO₂ scale"), type: "select", value: it.spo2Scale === 2 ? "2" : "1", options: [["1", t("1, for most people")], ["2", t("2, for hypercapnic respiratory failure")]] },
    { name: "scaleBy", label: t("Scale 2 prescribed by"), value: it.spo2ScaleBy },
    { name: "scaleAt", label: t("Scale 2 prescribed at"), type: "datetime-local", value: localOf(it.spo2ScaleAtUs) },
    { name: "contacts", label: t("Contacts"), value: contactsText(it), hint: t("As NAME, RELATION, ADDRESS, several separated by ;") },
    { name: "consents", label: t("Consents"), value: consentsText(it), hint: t("As PURPOSE=yes or PURPOSE=no, several separated by ;") },
  ];
}

export const placeIn = (values: Values): Place => create(PlaceSchema, { site: values["site"] ?? "", ward: values["ward"] ?? "", room: values["room"] ?? "", bed: values["bed"] ?? "" });

// detailsIn reads a form. A part that cannot be read is an error in words.
export function detailsIn(values: Values, before: Patient | undefined, nowUs: bigint): Patient {
  const text = (name: string) => values[name] ?? "";
  const isTwo = text("scale") === "2";
  const consents = parts(text("consents")).map((part) => {
    const [purpose, given] = pair(t("Consents"), part);
    if (given !== "yes" && given !== "no") throw new Error(t("{label}: “{part}” has another form.", { label: t("Consents"), part }));
    const known = before?.consents.find((it) => it.purpose === purpose && it.given === (given === "yes"));
    return { purpose, given: given === "yes", atUs: known?.atUs ?? nowUs };
  });
  return create(PatientSchema, {
    name: text("name"),
    birthDate: text("birthDate"),
    sex: Number(text("sex")) as Sex,
    identifiers: parts(text("identifiers")).map((part) => {
      const [system, value] = pair(t("Identifiers"), part);
      return { system, value };
    }),
    place: placeIn(values),
    language: text("language"),
    timeZone: text("timeZone"),
    spo2Scale: isTwo ? 2 : 1,
    spo2ScaleBy: isTwo ? text("scaleBy") : "",
    // A time that was not touched keeps its seconds.
    spo2ScaleAtUs: !isTwo ? 0n : before && localOf(before.spo2ScaleAtUs) === text("scaleAt") ? before.spo2ScaleAtUs : usOf(text("scaleAt")),
    contacts: parts(text("contacts")).map((part) => {
      const [name = "", relation = "", ...address] = part.split(",").map((it) => it.trim());
      return { name, relation, address: address.join(", ") };
    }),
    consents,
  });
}

const parts = (text: string): string[] => text.split(";").map((part) => part.trim()).filter((part) => part !== "");

function pair(label: string, part: string): [string, string] {
  const at = part.indexOf("=");
  if (at < 1) throw new Error(t("{label}: “{part}” has another form.", { label, part }));
  return [part.slice(0, at).trim(), part.slice(at + 1).trim()];
}

function localOf(timeUs: bigint): string {
  if (timeUs === 0n) return "";
  const at = new Date(Number(timeUs / 1000n));
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

const usOf = (local: string): bigint => (local === "" ? 0n : BigInt(new Date(local).getTime()) * 1000n);
