#!/usr/bin/env python3
"""backup.py - copies the database at one moment, restores it, and compares the two.

    backup.py make FOLDER       copies every table; FOLDER/manifest.json has rows and checksum of each
    backup.py restore FOLDER    into a database beside the present one; renamed after the comparison
    backup.py check FOLDER      compares the database with the manifest
    backup.py removed FILE      completes the list of what was revoked, removed or ended; run it often

    --removed FILE      that list (default: removed.jsonl beside FOLDER). `make` and `restore` complete
                        it, too; `restore` does the acts of the list again
    --server COMMAND    prefix that runs PostgreSQL's programs beside the server, as its superuser
                        (default: docker compose exec -T timescaledb; on a cluster:
                        kubectl -n ward exec -i timescaledb-0 -c timescaledb --)
    --database NAME     default: braid
    --passphrase-file FILE, --recipient FILE, --private-key FILE
                        `make` encrypts the copy with a passphrase, or for the RSA public key of a recipient (PEM);
                        `restore` and `check` read it with the passphrase, or with the private key
    --data DIR          instead of a database: the embedded store of `braid up` in this data directory. The
                        program `braid` does the work (`braid backup`), by --braid COMMAND if it is not found

Rows and their offsets of the bus are written in one transaction, so a copy is consistent. After
`restore` the services read later records from the bus. No record is lost or doubled while the
backup is younger than the bus's retention (7 days). Later actions by people (acknowledgements,
silences, accounts, the register) are not on the bus and are lost, but for those of the list: what was revoked,
removed or ended stays so. A restore is noted in the database, so that alerting repeats no notice."""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys

import encryption

FORMAT = 1
SERVER = "docker compose exec -T timescaledb"
# Checksum of one comparison: rows are added up by their text, in any order. numeric, because a sum
# of bigints may overflow.
SUM = "SELECT count(*), coalesce(sum(('x' || left(md5(t::text), 16))::bit(64)::bigint::numeric), 0) FROM %s t"
# The holder of a partition belongs to the running services; the position up to which it was read
# does not.
INSTEAD = {
    "progress": "(SELECT grp, topic, part, next_offset FROM progress)",
    # A restore adds its own row.
    "restores": "(SELECT restored_us FROM restores WHERE false)",
    # A restore ends them.
    "sessions": "(SELECT key FROM sessions WHERE false)",
}
FOREVER = 2 ** 63 - 1
# Bytes of a database name: PostgreSQL cuts names at 63 bytes, and a restore appends up to 15.
NAME_LENGTH_MAX = 48
# Longest wait for a lock of another session; then the command fails.
LOCK_WAIT_MS = 60_000
COPY_BYTES = 1 << 20


class Refused(Exception):
    pass


class NoServer(Refused):
    """The command of --server has answered nothing."""


def say(text):
    print("backup: " + text, flush=True)


class Session:
    """One psql with one connection, whose transaction sees one snapshot."""

    def __init__(self, server, database):
        self.answered = False
        self.process = subprocess.Popen(
            server + ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-F", "\t", "-U", "postgres", "-d", database],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self("SET TimeZone = 'UTC'; SET extra_float_digits = 1; SET client_min_messages = error; SET lock_timeout = %d" % LOCK_WAIT_MS)

    def __call__(self, sql):
        end = "-- end of the answer --"
        rows = []
        try:
            self.process.stdin.write("%s;\n\\echo '%s'\n" % (sql, end))
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self.process.stdout:
            if line.rstrip("\n") == end:
                self.answered = True
                return rows
            rows.append(line.rstrip("\n").split("\t"))
        said = "the database: " + (self.process.stderr.read().strip() or "psql ended")
        raise Refused(said) if self.answered else NoServer(said)

    def value(self, sql):
        return self(sql)[0][0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()
        self.process.wait()


def contents(session):
    """Rows and checksum of every table, the last value of every sequence."""
    names = [row[0] for row in session(
        "SELECT format('%I', relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') ORDER BY 1")]
    # A continuous aggregate of TimescaleDB looks like a view; TimescaleDB keeps it up to date.
    names += [row[0] for row in session(
        "SELECT format('%I', view_name) FROM timescaledb_information.continuous_aggregates WHERE view_schema = 'public' ORDER BY 1")]
    tables = {}
    for name in names:
        rows, checksum = session(SUM % INSTEAD.get(name, name))[0]
        tables[name] = {"rows": int(rows), "sum": checksum}
    sequences = {name: value for name, value in session(
        "SELECT sequencename, coalesce(last_value::text, '') FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1")}
    return {"tables": tables, "sequences": sequences}


def differences(wanted, found):
    told = []
    for kind in ("tables", "sequences"):
        for name in sorted(set(wanted[kind]) | set(found[kind])):
            was, has = wanted[kind].get(name), found[kind].get(name)
            # A snapshot does not freeze sequences, and the copy takes their values after the
            # manifest: a value may be ahead, but must not be behind.
            ahead = kind == "sequences" and None not in (was, has) and int(has or 0) >= int(was or 0)
            if was != has and not ahead:
                told.append("%s: %s in the backup, %s here" % (name, was or "nothing", has or "nothing"))
    return told


def total(found):
    return "%d tables, %d rows" % (len(found["tables"]), sum(table["rows"] for table in found["tables"].values()))


def digest(file):
    found = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(COPY_BYTES):
            found.update(block)
    return found.hexdigest()


def kept(file):
    """Syncs to disk, so that a crash of the machine loses nothing."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make(server, database, folder, list_of_removals, keys):
    if folder.exists():
        raise Refused("%s is there already; each backup takes a folder of its own" % folder)
    seal = keys.new()
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    try:
        manifest = copy(server, database, part, seal)
        if seal is not None:
            seal.note(part, "manifest.json")
            seal.keep(part)
        size = sum(file.stat().st_size for file in part.iterdir())
        for file in [*part.iterdir(), part]:
            kept(file)
        part.rename(folder)
        kept(folder.parent)
    except BaseException:
        # An incomplete copy is useless, and would fill the disk.
        shutil.rmtree(part, ignore_errors=True)
        raise
    with Session(server, database) as session:
        complete(list_of_removals, removals(session))
    say("%s: %s, %.1f MB%s" % (folder, total(manifest), size / 1e6, "" if seal is None else ", encrypted"))


class Keys:
    """What the command line says about encryption."""

    def __init__(self, chosen):
        self.passphrase_file, self.recipient, self.private_key = chosen.passphrase_file, chosen.recipient, chosen.private_key

    def new(self):
        if self.passphrase_file is None and self.recipient is None:
            return None
        return encryption.Seal.new(self.passphrase_file, self.recipient)

    def open(self, folder):
        return encryption.Seal.open(folder, self.passphrase_file, self.private_key)


def dump_into(command, part, seal):
    """Runs pg_dump; returns the SHA-256 of the dump."""
    if seal is None:
        with open(part / "database.dump", "wb") as dump:
            copied = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=dump, stderr=subprocess.PIPE, text=True)
        code, said = copied.returncode, copied.stderr
    else:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dumping:
            try:
                found = seal.write(dumping.stdout, part, "database.dump")
                said = dumping.stderr.read().decode(errors="replace")
            except BaseException:
                dumping.kill()
                raise
        code = dumping.returncode
    if code != 0:
        raise Refused("pg_dump: " + said.strip())
    return digest(part / "database.dump") if seal is None else found


def copy(server, database, part, seal):
    with Session(server, database) as session:
        # The comparison comes first: it locks every table and chunk against being dropped during
        # the copy.
        session("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        snapshot = session.value("SELECT pg_export_snapshot()")
        manifest = {
            "format": FORMAT,
            "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "postgresql": int(session.value("SHOW server_version_num")) // 10000,
            "timescaledb": session.value("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'"),
            "owner": session.value("SELECT datdba::regrole FROM pg_database WHERE datname = current_database()"),
            "roles": [row[0] for row in session(
                "SELECT DISTINCT r.rolname FROM pg_class c CROSS JOIN LATERAL (SELECT relowner UNION SELECT a.grantee FROM aclexplode(c.relacl) a) x (role)"
                " JOIN pg_roles r ON r.oid = x.role WHERE c.relnamespace = 'public'::regnamespace ORDER BY 1")],
            "offsets": [{"group": row[0], "topic": row[1], "partition": int(row[2]), "next": int(row[3])} for row in session(
                "SELECT grp, topic, part, next_offset FROM progress WHERE next_offset IS NOT NULL ORDER BY 1, 2, 3")],
        }
        manifest.update(contents(session))
        manifest["dump_sha256"] = dump_into(
            server + ["pg_dump", "-U", "postgres", "-d", database, "-Fc", "--snapshot=" + snapshot, "--lock-wait-timeout=%d" % LOCK_WAIT_MS], part, seal)
        session("COMMIT")
    with open(part / "manifest.json", "w") as file:
        json.dump(manifest, file, indent=1)
    return manifest


def read(folder):
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise Refused("%s is no backup: %s" % (folder, error)) from None
    written = manifest.get("format") if isinstance(manifest, dict) else None
    if written != FORMAT:
        raise Refused("%s has format %r, and this program reads %d" % (folder, written, FORMAT))
    return manifest


def restore(server, database, folder, list_of_removals, keys):
    manifest = read(folder)
    seal = verified(folder, keys)
    if seal is None and digest(folder / "database.dump") != manifest["dump_sha256"]:
        raise Refused("%s/database.dump is not what was written: its SHA-256 differs" % folder)
    fresh, before = database + "_restoring", database + "_before_restore"
    known = complete_from_present(server, database, list_of_removals)
    with Session(server, "postgres") as session:
        offered = [row[0] for row in session("SELECT version FROM pg_available_extension_versions WHERE name = 'timescaledb'")]
        if manifest["timescaledb"] not in offered:
            raise Refused("the backup is of TimescaleDB %s, the server has %s" % (manifest["timescaledb"], ", ".join(offered)))
        missing = set(manifest["roles"]) - {row[0] for row in session("SELECT rolname FROM pg_roles")}
        if missing:
            raise Refused("the server has no role %s: infra/timescaledb/roles.sh makes them" % ", ".join(sorted(missing)))
        if session("SELECT 1 FROM pg_database WHERE datname = '%s'" % before):
            raise Refused("%s is still there from an earlier restore: look at it, then DROP DATABASE %s" % (before, before))
        # Services cache keys and claims of the database that they opened; with another database
        # they would write under wrong ones.
        refuse_company(session, database)
        session("DROP DATABASE IF EXISTS %s WITH (FORCE)" % fresh)
        session("CREATE DATABASE %s TEMPLATE template0 OWNER %s" % (fresh, manifest["owner"]))
    with Session(server, fresh) as session:
        session("CREATE EXTENSION timescaledb VERSION '%s'" % manifest["timescaledb"])
        session("SELECT timescaledb_pre_restore()")
    opening = None if seal is None else seal.read(folder, "database.dump")
    with open(folder / "database.dump", "rb") if seal is None else opening.stdout as dump:
        copied = subprocess.run(server + ["pg_restore", "-U", "postgres", "-d", fresh, "--exit-on-error"], stdin=dump,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if opening is not None and copied.returncode == 0:
        seal.ended(opening)
    if copied.returncode != 0:
        raise Refused("pg_restore: " + copied.stderr.strip())
    with Session(server, fresh) as session:
        session("SELECT timescaledb_post_restore()")
    with Session(server, fresh) as session:
        found = contents(session)
        told = differences(manifest, found)
        if told:
            raise Refused("what was restored into %s differs:\n  %s" % (fresh, "\n  ".join(told)))
        for line in known:
            remove_again(session, line)
        # Alerting asks for it: a notice of before the restore is not repeated. A backup of an older
        # version has no such table.
        session("CREATE TABLE IF NOT EXISTS restores (restored_us bigint PRIMARY KEY, made_us bigint NOT NULL)")
        session("ALTER TABLE restores OWNER TO %s" % manifest["owner"])
        session("INSERT INTO restores VALUES ((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, %d)"
                % (datetime.datetime.fromisoformat(manifest["made"]).timestamp() * 1_000_000))
        # A session may have been revoked since. A backup of an older version has no such table.
        session("DO $$ BEGIN IF to_regclass('sessions') IS NOT NULL THEN DELETE FROM sessions; END IF; END $$")
        # A member that still holds a partition is refused, and asks for its starting position.
        session("UPDATE progress SET epoch = epoch + 1000000")
        session("ANALYZE")
        session("SELECT _timescaledb_functions.stop_background_workers()")
    with Session(server, "postgres") as session:
        refuse_company(session, database)
        present = session("SELECT 1 FROM pg_database WHERE datname = '%s'" % database)
    if present:
        with Session(server, database) as session:
            if session("SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'"):
                session("SELECT _timescaledb_functions.stop_background_workers()")
    with Session(server, "postgres") as session:
        # Both databases are renamed, or none.
        session("BEGIN")
        if present:
            session("ALTER DATABASE %s RENAME TO %s" % (database, before))
        session("ALTER DATABASE %s RENAME TO %s" % (fresh, database))
        session("COMMIT")
    with Session(server, database) as session:
        session("SELECT _timescaledb_functions.start_background_workers()")
    say("restored: %s, each as in the backup; %d removals done again%s" % (total(found), len(known), "; what was there before is %s" % before if present else ""))


def refuse_company(session, database):
    who = session("SELECT DISTINCT coalesce(nullif(application_name, ''), usename::text, backend_type) FROM pg_stat_activity "
                  "WHERE datname = '%s' AND backend_type = 'client backend'" % database)
    if who:
        raise Refused("%s is in use (%s): stop the services first" % (database, ", ".join(row[0] for row in who)))


def verified(folder, keys):
    """The key of an encrypted backup, with every file compared; None for a backup in clear."""
    seal = keys.open(folder)
    for name in [] if seal is None else ["manifest.json", "database.dump"]:
        seal.verify(folder, name)
    return seal


def check(server, database, folder, _, keys):
    manifest = read(folder)
    verified(folder, keys)
    with Session(server, database) as session:
        session("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        found = contents(session)
    told = differences(manifest, found)
    if told:
        raise Refused("%s differs from %s:\n  %s" % (database, folder, "\n  ".join(told)))
    say("%s is as in %s: %s" % (database, folder, total(found)))


def removals(session):
    """What was revoked, removed or ended in this database, as lines of the list."""
    found = [{"kind": "revocation", "tenant": row[0], "subject": row[1], "version": int(row[2]), "until_us": int(row[3]), "payload": row[4]}
             for row in session("SELECT tenant, subject, version, until_us, encode(payload, 'hex') FROM documents WHERE kind = 'revocation' ORDER BY key")]
    found += [{"kind": "ended", "subject": row[0], "from_us": int(row[1]), "until_us": int(row[2])}
              for row in session("SELECT device, from_us, until_us FROM assignments WHERE until_us < %d ORDER BY device, from_us" % FOREVER)]
    # A database of before has no such table.
    if session("SELECT 1 WHERE to_regclass('public.removals') IS NOT NULL"):
        for kind, subject, from_us, at_us in session("SELECT kind, subject, from_us, removed_us FROM removals ORDER BY removed_us, kind, subject"):
            line = {"kind": kind, "subject": subject, "at_us": int(at_us)}
            found.append({**line, "from_us": int(from_us)} if kind == "assignment" else line)
    return found


def listed(file):
    """The list. Its last line counts once it has its end."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return []
    whole = text[:text.rfind("\n") + 1]
    known = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            known += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise Refused("%s, line %d: %s" % (file, number, error)) from None
    return known


def complete(file, found):
    """Appends what the list does not have; nothing is ever taken out."""
    known = listed(file)
    new = [line for line in found if line not in known]
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as list_:
        # A line that a crash has cut short comes again.
        list_.truncate(list_.read().rfind(b"\n") + 1)
        list_.seek(0, os.SEEK_END)
        for line in new:
            list_.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        list_.flush()
        os.fsync(list_.fileno())
    return known + new


def text(value):
    return "'%s'" % str(value).replace("'", "''")


def remove_again(session, line):
    kind, subject = line.get("kind"), text(line.get("subject"))
    if kind == "account":
        session("DELETE FROM accounts WHERE name = %s AND created_us <= %d" % (subject, line["at_us"]))
    elif kind == "assignment":
        session("DELETE FROM assignments WHERE device = %s AND from_us = %d AND entered_us <= %d" % (subject, line["from_us"], line["at_us"]))
    elif kind == "patient":
        erase_again(session, subject)
    elif kind == "ended":
        session("UPDATE assignments SET until_us = %d WHERE device = %s AND from_us = %d AND until_us > %d"
                % (line["until_us"], subject, line["from_us"], line["until_us"]))
    elif kind == "revocation":
        session("INSERT INTO documents (kind, tenant, subject, version, until_us, payload) VALUES ('revocation', %s, %s, %d, %d, decode(%s, 'hex'))"
                " ON CONFLICT DO NOTHING" % (text(line["tenant"]), subject, line["version"], line["until_us"], text(line["payload"])))
    else:
        raise Refused("the list of removals has a line that this program does not know: %s" % line)
    if kind in ("account", "assignment", "patient") and session("SELECT 1 WHERE to_regclass('public.removals') IS NOT NULL"):
        session("INSERT INTO removals VALUES (%s, %s, %d, %d) ON CONFLICT DO NOTHING" % (text(kind), subject, line.get("from_us", 0), line["at_us"]))


def erase_again(session, patient):
    """Removes the patient from the copy. The row of the id stays without content. Services remove the
    newest values from the heads of devices when they start, by the row of removals."""
    alerts = "(SELECT id FROM alerts WHERE patient = %s)" % patient
    notices = "(SELECT id FROM notices WHERE alert IN %s)" % alerts
    series = "(SELECT e.key FROM series e JOIN patients p ON p.key = e.patient WHERE p.id = %s)" % patient
    for table, where in [
        ("notice_outcomes", "id IN " + notices), ("notice_queue", "id IN " + notices), ("notices", "alert IN " + alerts),
        ("watches", "alert IN " + alerts), ("silent", "alert IN " + alerts), ("alert_transitions", "id IN " + alerts),
        ("outbox", "position(convert_to(%s, 'UTF8') IN payload) > 0" % patient), ("alerts", "patient = " + patient), ("rule_states", "key = " + patient),
        ("samples", "series IN " + series), ("waveforms", "series IN " + series),
        ("gaps", "patient = (SELECT key FROM patients WHERE id = %s)" % patient),
        ("assignments", "patient = " + patient), ("patient_identifiers", "patient = " + patient),
        ("documents", "(kind = 'rules' AND subject = 'patient:' || %s) OR (kind = 'spo2-scale' AND subject = %s)" % (patient, patient)),
    ]:
        # A backup of an older version has fewer tables.
        if session("SELECT 1 WHERE to_regclass('public.%s') IS NOT NULL" % table):
            session("DELETE FROM %s WHERE %s" % (table, where))
    for rollup in ("vitals_1m", "vitals_1h"):
        kept = session("SELECT format('%%I.%%I', materialization_hypertable_schema, materialization_hypertable_name)"
                       " FROM timescaledb_information.continuous_aggregates WHERE view_name = '%s'" % rollup)
        session("DELETE FROM %s WHERE series IN %s" % (kept[0][0] if kept else rollup, series))
    session("WITH old AS (DELETE FROM audit WHERE patient = %s AND detail <> '' AND action <> 'erase patient' RETURNING *)"
            " INSERT INTO audit (time_us, tenant, who, action, patient, detail)"
            " SELECT time_us, tenant, who, action, patient, '' FROM old ORDER BY key" % patient)
    session("UPDATE patients SET tenant = '', name = id, spo2_scale = 1 WHERE id = %s" % patient)
    if session("SELECT 1 FROM information_schema.columns WHERE table_name = 'patients' AND column_name = 'record'"):
        session("UPDATE patients SET status = 2, status_us = 0, merged_into = '', revision = 0, record = '' WHERE id = %s" % patient)


def removed(server, database, file):
    with Session(server, database) as session:
        known = complete(file, removals(session))
    say("%s: %d removals" % (file, len(known)))


def complete_from_present(server, database, file):
    """Acts up to now, if the present database can still be read."""
    try:
        with Session(server, "postgres") as session:
            if not session("SELECT 1 FROM pg_database WHERE datname = '%s'" % database):
                raise Refused("there is none")
        with Session(server, database) as session:
            if not session("SELECT 1 WHERE to_regclass('public.documents') IS NOT NULL"):
                raise Refused("it is empty")
            return complete(file, removals(session))
    except Refused as reason:
        say("the present database cannot be read (%s): what was revoked or removed since the last entry of %s comes back" % (reason, file))
        return listed(file)


def embedded(chosen, keys):
    """Leaves the work to the program that knows the embedded store, with the same four words."""
    folder, clear = chosen.folder, chosen.folder.with_name(chosen.folder.name + ".clear")
    if chosen.what == "make":
        encrypt_made(chosen, keys, folder, clear)
    elif chosen.what != "removed" and (seal := keys.open(folder)) is not None:
        shutil.rmtree(clear, ignore_errors=True)
        clear.mkdir(mode=0o700)
        try:
            for name in ("manifest.json", "store.db"):
                seal.verify(folder, name)
            shutil.copyfile(folder / "manifest.json", clear / "manifest.json")
            opening = seal.read(folder, "store.db")
            with open(os.open(clear / "store.db", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                shutil.copyfileobj(opening.stdout, file, COPY_BYTES)
            seal.ended(opening)
            by_program(chosen, clear)
        finally:
            shutil.rmtree(clear, ignore_errors=True)
    else:
        by_program(chosen, folder)


def encrypt_made(chosen, keys, folder, clear):
    seal = keys.new()
    if seal is None:
        return by_program(chosen, folder)
    if folder.exists():
        raise Refused("%s is there already; each backup takes a folder of its own" % folder)
    part = folder.with_name(folder.name + ".part")
    for left in (clear, part):
        shutil.rmtree(left, ignore_errors=True)
    try:
        by_program(chosen, clear)
        part.mkdir(mode=0o700)
        with open(clear / "store.db", "rb") as store:
            seal.write(store, part, "store.db")
        shutil.copyfile(clear / "manifest.json", part / "manifest.json")
        seal.note(part, "manifest.json")
        seal.keep(part)
        for file in [*part.iterdir(), part]:
            kept(file)
        part.rename(folder)
        kept(folder.parent)
        say("%s: encrypted" % folder)
    finally:
        for left in (clear, part):
            shutil.rmtree(left, ignore_errors=True)


def by_program(chosen, folder):
    command = shlex.split(chosen.braid) + ["backup", chosen.what, str(folder)]
    if chosen.what != "check":
        command += ["--data", chosen.data]
    if chosen.removed is not None and chosen.what in ("make", "restore"):
        command += ["--removed", str(chosen.removed)]
    try:
        sys.stdout.flush()
        code = subprocess.run(command).returncode
    except OSError as failure:
        raise Refused("%s: %s; --braid names the program" % (command[0], failure.strerror)) from None
    if code != 0:
        sys.exit(code)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["make", "restore", "check", "removed"])
    arguments.add_argument("folder", type=pathlib.Path, metavar="FOLDER|FILE")
    arguments.add_argument("--removed", type=pathlib.Path, metavar="FILE")
    arguments.add_argument("--server", default=SERVER, metavar="COMMAND")
    arguments.add_argument("--database", default="braid", metavar="NAME")
    arguments.add_argument("--data", metavar="DIR")
    arguments.add_argument("--braid", default="braid", metavar="COMMAND")
    arguments.add_argument("--passphrase-file", type=pathlib.Path, metavar="FILE")
    arguments.add_argument("--recipient", type=pathlib.Path, metavar="FILE")
    arguments.add_argument("--private-key", type=pathlib.Path, metavar="FILE")
    chosen = arguments.parse_args()
    usable = {"make": {"passphrase_file", "recipient"}, "removed": set()}.get(chosen.what, {"passphrase_file", "private_key"})
    given = {name for name in ("passphrase_file", "recipient", "private_key") if getattr(chosen, name) is not None}
    for name in sorted(given - usable):
        arguments.error("--%s has no use with %s" % (name.replace("_", "-"), chosen.what))
    if len(given) > 1:
        arguments.error("one key is enough: %s" % " or ".join("--" + name.replace("_", "-") for name in sorted(given)))
    if not chosen.database.replace("_", "").isalnum() or not chosen.database[0].isalpha() or chosen.database != chosen.database.lower():
        arguments.error("--database takes a name of small letters, digits and underscores, such as braid")
    if len(chosen.database) > NAME_LENGTH_MAX:
        arguments.error("--database takes %d letters at most" % NAME_LENGTH_MAX)
    # Like Ctrl-C: the running step is undone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server, keys = shlex.split(chosen.server), Keys(chosen)
    work = {"make": make, "restore": restore, "check": check}
    try:
        if chosen.data is not None:
            embedded(chosen, keys)
        elif chosen.what == "removed":
            removed(server, chosen.database, chosen.folder)
        else:
            list_of_removals = chosen.removed or chosen.folder.with_name("removed.jsonl")
            work[chosen.what](server, chosen.database, chosen.folder, list_of_removals, keys)
    except (Refused, encryption.Unsealed, OSError) as failure:
        other = "" if chosen.server != SERVER else "\nThe database was looked for by `%s`: --server names another command, and --data DIR a data directory of `braid up`." % SERVER
        sys.exit("backup: %s%s" % (failure, other if isinstance(failure, (NoServer, FileNotFoundError)) else ""))
    except KeyboardInterrupt:
        sys.exit("backup: interrupted")


main()
