use async_trait::async_trait;

use crate::{
    AuditEntry, Scope,
    error::{QueryError, WriteError},
};

/// Assignments of one device. A further one is refused; `braid register remove` makes room.
pub const ASSIGNMENTS_PER_DEVICE_MAX: usize = 1000;
/// Assignments in one answer, the newest; the command line says so when there are more.
pub const ASSIGNMENTS_LISTED_MAX: usize = 10_000;
/// Rows of the register that one question reads; a reader of all goes on behind the last.
pub const REGISTER_PAGE: usize = 1000;
/// Bytes of an author and of a reason; longer ones are refused.
pub const REGISTER_TEXT_BYTES_MAX: usize = 1024;

/// Delay before a worn device is handed over, so that ingest and gateways know the change before it
/// begins. They read changes each second.
pub const ASSIGN_LEAD_US: i64 = 3_000_000;

pub use contracts::patients::PatientStatus;
pub use vitals::Spo2Scale;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatientEntry {
    /// Unique over all tenants.
    pub id: String,
    pub tenant: String,
    pub name: String,
    pub spo2_scale: Spo2Scale,
    /// Status of the stay. A put sets it for a new patient only: see [`crate::PatientsStore`].
    pub status: PatientStatus,
    /// Another record replaces this one.
    pub is_merged: bool,
}

/// A new patient is admitted.
impl Default for PatientEntry {
    fn default() -> PatientEntry {
        PatientEntry {
            id: String::new(),
            tenant: String::new(),
            name: String::new(),
            spo2_scale: Spo2Scale::One,
            status: PatientStatus::Admitted,
            is_merged: false,
        }
    }
}

impl PatientEntry {
    /// A patient of the ward: neither discharged nor dead, and not merged into another record.
    pub fn is_present(&self) -> bool {
        !self.is_merged && !patients::has_departed(self.status)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayEntry {
    /// Unique over all tenants.
    pub id: String,
    pub tenant: String,
}

/// A device as it is assigned at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Unique over all tenants.
    pub id: String,
    pub tenant: String,
    pub gateway: String,
    pub patient: String,
    /// Start of the assignment. Earlier readings of the device belong to other patients.
    pub registered_us: i64,
}

/// Author and reason of a change of the register, stored in an audit row of the same transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub author: String,
    pub reason: String,
    pub at_us: i64,
}

impl Change {
    /// A change that a program makes by itself.
    pub fn by_program(reason: &str) -> Change {
        Change {
            author: "braid".to_owned(),
            reason: reason.to_owned(),
            at_us: contracts::now_us(),
        }
    }
}

/// A patient wears a device at a gateway, from `from_us` inclusive to `until_us` exclusive.
/// Intervals of one device do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Unique over all tenants.
    pub device: String,
    pub tenant: String,
    pub gateway: String,
    pub patient: String,
    /// [`i64::MIN`]: the beginning is unknown.
    pub from_us: i64,
    /// [`i64::MAX`]: the assignment is open.
    pub until_us: i64,
    /// Author, reason and time of the entry.
    pub entered: Change,
}

impl Assignment {
    pub fn is_open(&self) -> bool {
        self.until_us == i64::MAX
    }

    fn overlaps(&self, other: &Assignment) -> bool {
        self.from_us < other.until_us && other.from_us < self.until_us
    }

    /// The device with its present assignment.
    pub fn entry(self) -> DeviceEntry {
        DeviceEntry {
            id: self.device,
            tenant: self.tenant,
            gateway: self.gateway,
            patient: self.patient,
            registered_us: self.from_us,
        }
    }

    /// Refuses an end that is not behind the beginning.
    pub(crate) fn end_at(&mut self, until_us: i64) -> Result<(), WriteError> {
        if until_us <= self.from_us || until_us == i64::MAX {
            return Err(WriteError::Invalid(format!(
                "{} cannot end at {until_us} us",
                self.detail()
            )));
        }
        self.until_us = until_us;
        Ok(())
    }

    pub(crate) fn audit(&self, action: &str, change: &Change) -> [AuditEntry; 1] {
        let entry = AuditEntry {
            time_us: change.at_us,
            tenant: self.tenant.clone(),
            who: change.author.clone(),
            action: action.to_owned(),
            patient: self.patient.clone(),
            detail: self.detail(),
        };
        [entry.because(&change.reason)]
    }

    fn detail(&self) -> String {
        let end = |us: i64| match us {
            i64::MIN => "the beginning".to_owned(),
            i64::MAX => "further notice".to_owned(),
            us => format!("{us} us"),
        };
        format!(
            "device {} at gateway {} from {} until {}",
            self.device,
            self.gateway,
            end(self.from_us),
            end(self.until_us)
        )
    }
}

/// Which assignments a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of<'a> {
    Everything,
    Device(&'a str),
    Gateway(&'a str),
    Patient(&'a str),
}

/// Effect of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assigned {
    /// The device already has this assignment.
    Unchanged,
    /// The previous assignment, which ends where the new one begins.
    New(Option<Assignment>),
}

/// Patients, gateways and wearing intervals. Put calls are idempotent: they create or change. An id
/// of another tenant is refused with `Invalid`, as is a device whose gateway or patient belongs to
/// another tenant.
#[async_trait]
pub trait Register: Send + Sync {
    async fn put_patient(&self, entry: &PatientEntry) -> Result<(), WriteError>;
    async fn put_gateway(&self, entry: &GatewayEntry) -> Result<(), WriteError>;

    /// Creates the gateway and the patient (named by its id) if they are missing. An open
    /// assignment that began earlier ends where this one begins. An assignment that began at the
    /// same time, or differs only by a later beginning, is replaced. Any other overlap refuses the
    /// call.
    async fn assign(&self, assignment: &Assignment) -> Result<Assigned, WriteError>;
    /// Ends the open assignment. `None`: there is none. Refused if the assignment began at
    /// `until_us` or later.
    async fn end_assignment(
        &self,
        scope: &Scope,
        device: &str,
        until_us: i64,
        change: &Change,
    ) -> Result<Option<Assignment>, WriteError>;
    /// Removes the assignment that began at `from_us`, or all, and returns their number. Stored
    /// readings stay. Later readings from that time belong to no patient.
    async fn remove_assignments(
        &self,
        scope: &Scope,
        device: &str,
        from_us: Option<i64>,
        change: &Change,
    ) -> Result<u64, WriteError>;

    /// By device and beginning, the newest [`ASSIGNMENTS_LISTED_MAX`].
    async fn assignments(&self, scope: &Scope, of: Of<'_>) -> Result<Vec<Assignment>, QueryError>;
    /// Assignments that hold at `at_us`, in order of the device: of the `limit` devices after
    /// `after`, at most one each.
    async fn assignments_at(
        &self,
        scope: &Scope,
        at_us: i64,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Assignment>, QueryError>;
    /// All assignments that hold at `at_us`, by device, read page by page.
    async fn all_assignments_at(
        &self,
        scope: &Scope,
        at_us: i64,
    ) -> Result<Vec<Assignment>, QueryError> {
        let mut found: Vec<Assignment> = Vec::new();
        loop {
            let last = found.last().map_or("", |it| it.device.as_str());
            let page = self
                .assignments_at(scope, at_us, last, REGISTER_PAGE)
                .await?;
            let is_last = page.len() < REGISTER_PAGE;
            found.extend(page);
            if is_last {
                return Ok(found);
            }
        }
    }
    /// Devices of all tenants with changed assignments, and the time of the change by the clock of
    /// the writer. Returns the `limit` changes after `after`, in order of time and device.
    async fn assignments_changed_page(
        &self,
        after: (i64, &str),
        limit: usize,
    ) -> Result<Vec<(String, i64)>, QueryError>;

    async fn patient(&self, scope: &Scope, id: &str) -> Result<Option<PatientEntry>, QueryError>;
    async fn gateway(&self, scope: &Scope, id: &str) -> Result<Option<GatewayEntry>, QueryError>;
    /// The `limit` patients that follow the id `after`, in an order that the engine keeps. Patients
    /// who have departed, and merged records, are left out.
    async fn patients_page(
        &self,
        scope: &Scope,
        after: &str,
        limit: usize,
    ) -> Result<Vec<PatientEntry>, QueryError>;
    /// The same of gateways.
    async fn gateways_page(
        &self,
        scope: &Scope,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GatewayEntry>, QueryError>;
    /// The same of the assignments without an end. `gateway`: only those of this gateway.
    async fn devices_page(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Result<Vec<DeviceEntry>, QueryError>;

    /// All changes after `since_us`, read page by page.
    async fn assignments_changed_since(
        &self,
        since_us: i64,
    ) -> Result<Vec<(String, i64)>, QueryError> {
        // Every id is greater than the empty one: the first page begins behind `since_us`.
        let mut found: Vec<(String, i64)> = Vec::new();
        let first = since_us.saturating_add(1);
        loop {
            let last = found.last().map(|(id, us)| (*us, id.as_str()));
            let page = self
                .assignments_changed_page(last.unwrap_or((first, "")), REGISTER_PAGE)
                .await?;
            let is_last = page.len() < REGISTER_PAGE;
            found.extend(page);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// All that are present, by id, read page by page.
    async fn patients(&self, scope: &Scope) -> Result<Vec<PatientEntry>, QueryError> {
        let mut found: Vec<PatientEntry> = Vec::new();
        loop {
            let last = found.last().map_or("", |it| it.id.as_str());
            let page = self.patients_page(scope, last, REGISTER_PAGE).await?;
            let is_last = page.len() < REGISTER_PAGE;
            found.extend(page);
            if is_last {
                break;
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// All of them by id, read page by page.
    async fn gateways(&self, scope: &Scope) -> Result<Vec<GatewayEntry>, QueryError> {
        let mut found: Vec<GatewayEntry> = Vec::new();
        loop {
            let last = found.last().map_or("", |it| it.id.as_str());
            let page = self.gateways_page(scope, last, REGISTER_PAGE).await?;
            let is_last = page.len() < REGISTER_PAGE;
            found.extend(page);
            if is_last {
                break;
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Assignments without an end, by device, read page by page. `gateway`: only those of this one.
    async fn devices(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<DeviceEntry>, QueryError> {
        let mut found: Vec<DeviceEntry> = Vec::new();
        loop {
            let last = found.last().map_or("", |it| it.id.as_str());
            let page = self
                .devices_page(scope, gateway, last, REGISTER_PAGE)
                .await?;
            let is_last = page.len() < REGISTER_PAGE;
            found.extend(page);
            if is_last {
                break;
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// [`Self::assign`] by a program, from `registered_us` on.
    async fn put_device(&self, entry: &DeviceEntry) -> Result<(), WriteError> {
        let assignment = Assignment {
            device: entry.id.clone(),
            tenant: entry.tenant.clone(),
            gateway: entry.gateway.clone(),
            patient: entry.patient.clone(),
            from_us: entry.registered_us,
            until_us: i64::MAX,
            entered: Change::by_program("entered by a program"),
        };
        self.assign(&assignment).await.map(drop)
    }

    /// [`Self::remove_assignments`] by a program. False: it was not there.
    async fn remove_device(&self, scope: &Scope, id: &str) -> Result<bool, WriteError> {
        let change = Change::by_program("removed by a program");
        let removed = self.remove_assignments(scope, id, None, &change).await?;
        Ok(removed > 0)
    }

    /// As it is assigned at present.
    async fn device(&self, scope: &Scope, id: &str) -> Result<Option<DeviceEntry>, QueryError> {
        let assignments = self.assignments(scope, Of::Device(id)).await?;
        let open = assignments.into_iter().find(Assignment::is_open);
        Ok(open.map(Assignment::entry))
    }
}

/// Passes every assignment in scope that holds at `at_us` to the callback, page by page.
pub async fn each_assignment_at(
    store: &(impl Register + ?Sized),
    scope: &Scope,
    at_us: i64,
    mut take: impl FnMut(Assignment) + Send,
) -> Result<(), QueryError> {
    let mut after = String::new();
    loop {
        let page = store
            .assignments_at(scope, at_us, &after, REGISTER_PAGE)
            .await?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after.clone_from(&last.device);
        let is_last = page.len() < REGISTER_PAGE;
        page.into_iter().for_each(&mut take);
        if is_last {
            return Ok(());
        }
    }
}

/// Changes of a device's rows for a new assignment. Rows are identified by their beginning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The one that ends where the new one begins.
    pub cut: Option<Assignment>,
    /// Removed rows.
    pub replaced: Option<Assignment>,
}

/// Effect of `new` on the device's assignments. `None`: it exists already.
pub(crate) fn plan(existing: &[Assignment], new: &Assignment) -> Result<Option<Plan>, WriteError> {
    let invalid = |reason: String| Err(WriteError::Invalid(reason));
    for (field, id) in [
        ("device", &new.device),
        ("tenant", &new.tenant),
        ("gateway", &new.gateway),
        ("patient", &new.patient),
    ] {
        if id.is_empty() {
            return invalid(format!(
                "an assignment needs a {field}, for example `{field}-1`"
            ));
        }
    }
    check_texts(&new.entered)?;
    let device = &new.device;
    if new.from_us >= new.until_us {
        return invalid(format!(
            "device `{device}`: the assignment ends before it begins"
        ));
    }
    let is_same = |it: &&Assignment| it.patient == new.patient && it.gateway == new.gateway;
    let holds = existing.iter().find(|it| {
        it.from_us <= new.from_us && new.from_us < it.until_us && it.until_us == new.until_us
    });
    if holds.as_ref().is_some_and(is_same) {
        return Ok(None);
    }
    let (mut cut, mut replaced) = (None, None);
    for other in existing.iter().filter(|other| other.overlaps(new)) {
        // The same one with an earlier beginning, or another from the same moment on.
        let is_extended = is_same(&other) && other.until_us == new.until_us;
        if other.from_us == new.from_us || (is_extended && replaced.is_none()) {
            replaced = Some(other.clone());
        } else if other.is_open() && other.from_us < new.from_us {
            cut = Some(other.clone());
        } else {
            return invalid(format!(
                "device `{device}` is with patient `{}` in that time: {}; end or remove that assignment first",
                other.patient,
                other.detail()
            ));
        }
    }
    if replaced.is_none() && existing.len() >= ASSIGNMENTS_PER_DEVICE_MAX {
        return invalid(format!(
            "device `{device}` has {ASSIGNMENTS_PER_DEVICE_MAX} assignments, as many as one may have; remove old ones"
        ));
    }
    Ok(Some(Plan { cut, replaced }))
}

/// Refuses authors and reasons that the log must not contain.
pub(crate) fn check_texts(change: &Change) -> Result<(), WriteError> {
    for (field, text) in [("author", &change.author), ("reason", &change.reason)] {
        let is_plain = contracts::text::is_plain(text);
        if text.trim().is_empty() || text.len() > REGISTER_TEXT_BYTES_MAX || !is_plain {
            return Err(WriteError::Invalid(format!(
                "a change of the register needs a {field} of 1 to {REGISTER_TEXT_BYTES_MAX} bytes in one line"
            )));
        }
    }
    Ok(())
}

/// Reason why a name cannot be registered: the system reserves it.
pub(crate) fn reserved(what: &str, id: &str) -> Option<String> {
    contracts::canary::is_canary(id)
        .then(|| format!("{what} `{id}`: the name belongs to the system's own test alert"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(patient: &str, from_us: i64, until_us: i64) -> Assignment {
        Assignment {
            device: "belt".into(),
            tenant: "t".into(),
            gateway: "gw".into(),
            patient: patient.into(),
            from_us,
            until_us,
            entered: Change::by_program("test"),
        }
    }

    #[test]
    fn an_assignment_cuts_the_one_that_goes_on_and_no_other() {
        let closed = assignment("ada", 0, 10);
        let open = assignment("ben", 10, i64::MAX);
        let existing = [closed.clone(), open.clone()];
        let planned = |patient: &str, from_us, until_us| {
            plan(&existing, &assignment(patient, from_us, until_us))
        };
        let insert = |cut, replaced| Some(Some(Plan { cut, replaced }));
        assert_eq!(planned("ben", 12, i64::MAX).ok(), Some(None));
        assert_eq!(
            planned("eve", 12, i64::MAX).ok(),
            insert(Some(open.clone()), None)
        );
        let same_moment = planned("eve", 10, i64::MAX).ok();
        assert_eq!(same_moment, insert(None, Some(open.clone())));
        assert_eq!(planned("eve", -5, 0).ok(), insert(None, None));
        assert!(planned("ben", 9, i64::MAX).is_err(), "ada's last moment");
        let later = assignment("ben", 12, i64::MAX);
        let earlier = plan(
            std::slice::from_ref(&later),
            &assignment("ben", 3, i64::MAX),
        );
        assert_eq!(earlier.ok(), insert(None, Some(later)));
        for (from_us, until_us) in [(5, i64::MAX), (5, 8), (-5, 1), (9, 9), (-5, i64::MAX)] {
            assert!(
                matches!(
                    planned("eve", from_us, until_us),
                    Err(WriteError::Invalid(_))
                ),
                "{from_us} to {until_us}"
            );
        }
    }

    #[test]
    fn assignments_of_a_device_are_bounded() {
        let existing: Vec<Assignment> = (0..ASSIGNMENTS_PER_DEVICE_MAX as i64)
            .map(|n| assignment("ada", n, n + 1))
            .collect();
        let next = assignment("ben", ASSIGNMENTS_PER_DEVICE_MAX as i64, i64::MAX);
        assert!(plan(&existing, &next).is_err());
        assert!(plan(&existing[1..], &next).is_ok());
        let mut unsigned = next;
        unsigned.entered.reason = " ".into();
        assert!(plan(&[], &unsigned).is_err());
    }
}
