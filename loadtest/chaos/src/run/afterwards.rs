//! The scenes after the last reading, when everything is stored and told. A gateway is revoked,
//! processes restart while all is silent, and the database is restored.

use std::time::{Duration, Instant};

use super::{LOOK, RunError, Stage, clock, http, sensors};
use crate::{
    facts::{Call, Found, Raised, Reading},
    plan::WATCHES,
    scenario::{METRICS, SERVICES, SILENT_AFTER_S, device_of},
    verdict::Verdict,
};

/// Time in which the silence of all sensors is raised after the end of the run.
const SILENCE_WITHIN: Duration = Duration::from_secs(60);
/// A restarted watch looks three times at least, with a clock that it trusts.
pub(super) const SILENT_AGAIN: Duration = Duration::from_secs(SILENT_AFTER_S as u64 + 16);
/// The gateway that is revoked at the end, and a patient there.
const REVOKED: &str = "gw-1";
const REVOKED_PATIENT: &str = "ada";
/// Number of the reading that it sends afterwards; no series of a run is that long.
const REVOKED_NUMBER: u64 = 1_000_000;
/// A revocation holds everywhere within this time.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);
/// They know of a revocation, also after a restart.
const REFUSERS: [&str; 2] = ["ingest", "proxy"];
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// After the end of the services the database closes their connections within this time.
const UNUSED_WITHIN: Duration = Duration::from_secs(30);
/// Time in which the services work again on the restored database.
const RESTORED_WITHIN: Duration = Duration::from_secs(90);

impl Stage {
    /// Revokes a gateway, which then gets one more reading of its sensor. A restart of those who
    /// refuse it must not take it in, see `restart_in_silence`.
    pub(super) fn revoke(&mut self, ended: &mut Vec<String>) -> Result<(), RunError> {
        eprintln!("chaos: {REVOKED} is revoked");
        let (gateway, patient) = (REVOKED, REVOKED_PATIENT);
        self.site.revoke(gateway, "default")?;
        std::thread::sleep(REVOKED_WITHIN);
        let reading = Reading {
            patient,
            metric: METRICS[0].1,
            number: REVOKED_NUMBER,
            time_us: clock::now_us(),
            value: METRICS[0].2,
        };
        let body = sensors::body(&device_of(patient), &reading);
        let to = self.site.sensors[gateway];
        let sent = http::request(to, "POST", "/v1/samples", &body, ANSWER_WITHIN);
        // The gateway itself may not know yet.
        if let Err(error) = self.runtime.block_on(sent) {
            ended.push(format!(
                "{gateway} took no reading after its revocation: {error}"
            ));
        }
        for name in REFUSERS {
            self.site.kill(name);
        }
        for name in REFUSERS {
            self.site.start(name)?;
        }
        for name in REFUSERS {
            self.runtime.block_on(self.site.wait_ready(name))?;
        }
        Ok(())
    }

    /// Everything is silent now, since the sensors have ended. A restart of all watches ends no
    /// silence.
    pub(super) fn restart_in_silence(
        &mut self,
        judge: &impl Fn(&Found) -> Verdict,
        ended: &mut Vec<String>,
    ) -> Result<Verdict, RunError> {
        eprintln!("chaos: all sensors are silent; the members of alerting restart");
        let deadline = Instant::now() + SILENCE_WITHIN;
        while !self.found()?.alerts.iter().any(is_silence_of_all) {
            if Instant::now() > deadline {
                ended.push("the silence of all sensors was not raised".to_owned());
                break;
            }
            std::thread::sleep(LOOK);
        }
        for name in WATCHES {
            self.site.kill(name);
        }
        for name in WATCHES {
            self.site.start(name)?;
        }
        for name in WATCHES {
            self.runtime.block_on(self.site.wait_ready(name))?;
        }
        std::thread::sleep(SILENT_AGAIN);
        let found = self.found()?;
        if found.rows.iter().any(|row| row.number == REVOKED_NUMBER) {
            ended.push(format!(
                "a reading of {REVOKED} was stored after its revocation"
            ));
        }
        if !found.alerts.iter().any(is_silence_of_all) {
            ended.push("after a restart of alerting the silence of all sensors is over".to_owned());
        }
        Ok(judge(&found))
    }

    /// Whether there is a copy of the database now.
    pub(super) fn copy(&self, ended: &mut Vec<String>) -> bool {
        eprintln!("chaos: the database is copied");
        let made = self.backup.make();
        let said = made
            .as_ref()
            .err()
            .map(|said| format!("no backup was made: {said}"));
        ended.extend(said);
        made.is_ok()
    }

    /// A copy from before the revocation replaces the database. The gateway stays revoked, nobody
    /// is told again, and the silences since are there again.
    pub(super) fn restore(
        &mut self,
        judge: &impl Fn(&Found) -> Verdict,
        ended: &mut Vec<String>,
    ) -> Result<Verdict, RunError> {
        eprintln!("chaos: the copy is restored");
        let services: Vec<&str> = SERVICES.iter().map(|(name, _)| *name).collect();
        for name in &services {
            self.site.kill(name);
        }
        let told = self.receiver.calls.lock().len();
        let deadline = Instant::now() + UNUSED_WITHIN;
        while let Err(said) = self.backup.restore() {
            if Instant::now() > deadline {
                ended.push(format!("the database was not restored: {said}"));
                break;
            }
            std::thread::sleep(LOOK);
        }
        for name in &services {
            self.site.start(name)?;
        }
        for (name, _) in SERVICES {
            self.runtime.block_on(self.site.wait_ready(name))?;
        }
        let deadline = Instant::now() + RESTORED_WITHIN;
        std::thread::sleep(SILENT_AGAIN);
        let found = loop {
            let found = self.found()?;
            let is_as_before = judge(&found).is_good()
                && found.alerts.iter().any(is_silence_of_all)
                && !found.rows.iter().any(|row| row.number == REVOKED_NUMBER);
            if is_as_before || Instant::now() > deadline {
                break found;
            }
            std::thread::sleep(LOOK);
        };
        if found.rows.iter().any(|row| row.number == REVOKED_NUMBER) {
            ended.push(format!("a restore made the revocation of {REVOKED} void"));
        }
        if !found.alerts.iter().any(is_silence_of_all) {
            ended.push("after a restore the silence of all sensors is over".to_owned());
        }
        let (before, after) = found.calls.split_at(told.min(found.calls.len()));
        let again = after.iter().filter(|call| is_repeated(call, before));
        ended.extend(again.map(|call| format!("told again after a restore: {call:?}")));
        Ok(judge(&found))
    }
}

/// A reminder is no repetition, since an alert that nobody acknowledges has further ones.
pub(super) fn is_repeated(call: &Call, before: &[Call]) -> bool {
    let is_same =
        |it: &Call| (&it.id, it.revision, it.is_reminder) == (&call.id, call.revision, false);
    !call.is_reminder && before.iter().any(is_same)
}

pub(super) fn is_silence_of_all(alert: &Raised) -> bool {
    alert.rule == "pipeline-silent" && alert.state != "resolved"
}
