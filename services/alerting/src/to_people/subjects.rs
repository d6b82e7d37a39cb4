//! Tenants and patients whom an alert concerns, and the wider alert that explains it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use contracts::alerts::{Alert, Notice, NoticeRecord, NoticeResult};
use parking_lot::Mutex;
use store::{AlertsQuery, QueryError, Scope, Store, each_assignment_at};
use vitals::silence::{PIPELINE, is_below_gateway, is_of_gateway};

use crate::routing::Unmonitored;

/// Patients and gateways whose tenant is cached. Beyond it all are fetched again.
const SUBJECTS_MAX: usize = 50_000;
/// Maximum age of a cached subject.
const SUBJECT_AGE_MAX_US: i64 = 60_000_000;
/// Open alerts without a patient that are searched for a wider one.
const WIDER_MAX: usize = 10_000;
/// Open gateway alerts of a tenant that are searched for a wider one.
const OF_TENANT_MAX: usize = 1000;
/// Maximum age of the cached answer whether the pipeline is silent.
const PIPELINE_AGE_MAX_US: i64 = 2_000_000;
/// The notices of a wider alert are expected within this time. Without them it explains nothing.
const TOLD_WITHIN_US: i64 = 60_000_000;

/// A tenant whom an alert concerns.
#[derive(Clone, Debug, Default)]
pub(super) struct Subject {
    /// Empty: neither the patient nor the gateway is registered.
    pub(super) tenant: String,
    /// Name of the patient.
    pub(super) name: String,
    pub(super) unmonitored: Unmonitored,
}

/// Answers of the store with the time of the question.
type Asked<T> = Mutex<Option<(T, i64)>>;

/// Reads subjects from the register, and remembers them for a while.
pub(super) struct Subjects {
    store: Arc<dyn Store>,
    /// By patient, or by `gateway` and its id.
    known: Mutex<HashMap<String, (Subject, i64)>>,
    /// Patients with a sensor, by tenant.
    watched: Asked<Arc<BTreeMap<String, Unmonitored>>>,
    pipeline: Asked<Option<Alert>>,
}

impl Subjects {
    pub(super) fn new(store: Arc<dyn Store>) -> Subjects {
        Subjects {
            store,
            known: Mutex::default(),
            watched: Mutex::default(),
            pipeline: Mutex::default(),
        }
    }

    /// One for an alert of a patient or a gateway. An alert of neither concerns every tenant whose
    /// patients wear sensors, and every tenant that was told of it before. `only`: this tenant.
    pub(super) async fn of(
        &self,
        alert: &Alert,
        only: Option<&str>,
        now_us: i64,
    ) -> Result<Vec<Subject>, QueryError> {
        if !alert.patient.is_empty() || !alert.gateway.is_empty() {
            return Ok(vec![self.of_one(alert, now_us).await?]);
        }
        let watched = self.watched(now_us).await?;
        let tenant = |(tenant, unmonitored): (&String, &Unmonitored)| Subject {
            tenant: tenant.clone(),
            unmonitored: unmonitored.clone(),
            ..Subject::default()
        };
        if let Some(only) = only {
            let unmonitored = watched.get(only).cloned().unwrap_or_default();
            return Ok(vec![tenant((&only.to_owned(), &unmonitored))]);
        }
        let mut subjects: Vec<Subject> = watched.iter().map(tenant).collect();
        if alert.revision > 1 {
            let records = self.notices(&alert.id).await?;
            let told = records.into_iter().filter_map(|record| record.notice);
            let told: BTreeSet<String> = told.map(|notice| notice.tenant).collect();
            let others = told.iter().filter(|it| !watched.contains_key(*it));
            subjects.extend(others.map(|it| tenant((it, &Unmonitored::default()))));
        }
        if subjects.is_empty() {
            subjects.push(Subject::default());
        }
        Ok(subjects)
    }

    async fn of_one(&self, alert: &Alert, now_us: i64) -> Result<Subject, QueryError> {
        let is_of_patient = !alert.patient.is_empty();
        let key = if is_of_patient {
            format!("{} {}", alert.patient, alert.gateway)
        } else {
            format!("gateway {}", alert.gateway)
        };
        if let Some((subject, asked_us)) = self.known.lock().get(&key)
            && now_us.abs_diff(*asked_us) < SUBJECT_AGE_MAX_US.unsigned_abs()
        {
            return Ok(subject.clone());
        }
        let subject = if is_of_patient {
            self.of_patient(alert).await?
        } else {
            self.of_gateway(&alert.gateway).await?
        };
        let mut known = self.known.lock();
        if known.len() >= SUBJECTS_MAX {
            known.clear();
        }
        known.insert(key, (subject.clone(), now_us));
        Ok(subject)
    }

    /// A patient who is not registered belongs to the tenant of the gateway.
    async fn of_patient(&self, alert: &Alert) -> Result<Subject, QueryError> {
        let patient = self.store.patient(&Scope::Service, &alert.patient).await?;
        if let Some(patient) = patient {
            return Ok(Subject {
                tenant: patient.tenant,
                name: patient.name,
                ..Subject::default()
            });
        }
        let gateway = self.store.gateway(&Scope::Service, &alert.gateway).await?;
        Ok(Subject {
            tenant: gateway.map(|gateway| gateway.tenant).unwrap_or_default(),
            ..Subject::default()
        })
    }

    /// Whether the alert is about a patient who has departed. Asked each time: a message about
    /// somebody who has died cannot be taken back.
    pub(super) async fn has_departed(&self, alert: &Alert) -> Result<bool, QueryError> {
        if alert.patient.is_empty() {
            return Ok(false);
        }
        let patient = self.store.patient(&Scope::Service, &alert.patient).await?;
        match patient {
            Some(patient) => Ok(!patient.is_present()),
            None => self.store.is_erased(&alert.patient).await,
        }
    }

    async fn of_gateway(&self, id: &str) -> Result<Subject, QueryError> {
        let Some(gateway) = self.store.gateway(&Scope::Service, id).await? else {
            return Ok(Subject::default());
        };
        let scope = Scope::tenant(&gateway.tenant);
        let devices = self.store.devices(&scope, Some(id)).await?;
        let patients = devices.into_iter().map(|device| device.patient);
        let unmonitored = self.named(&scope, &patients.collect()).await?;
        Ok(Subject {
            tenant: gateway.tenant,
            unmonitored,
            ..Subject::default()
        })
    }

    /// Patients who wear a sensor at present.
    async fn watched(&self, now_us: i64) -> Result<Arc<BTreeMap<String, Unmonitored>>, QueryError> {
        if let Some((watched, asked_us)) = &*self.watched.lock()
            && now_us.abs_diff(*asked_us) < SUBJECT_AGE_MAX_US.unsigned_abs()
        {
            return Ok(Arc::clone(watched));
        }
        let mut patients: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        each_assignment_at(self.store.as_ref(), &Scope::Service, now_us, |it| {
            patients.entry(it.tenant).or_default().insert(it.patient);
        })
        .await?;
        let mut watched = BTreeMap::new();
        for (tenant, patients) in patients {
            let unmonitored = self.named(&Scope::tenant(&tenant), &patients).await?;
            watched.insert(tenant, unmonitored);
        }
        let watched = Arc::new(watched);
        *self.watched.lock() = Some((Arc::clone(&watched), now_us));
        Ok(watched)
    }

    async fn named(
        &self,
        scope: &Scope,
        patients: &BTreeSet<String>,
    ) -> Result<Unmonitored, QueryError> {
        let mut unmonitored = Unmonitored::new(patients);
        for (id, name) in unmonitored.named() {
            if let Some(patient) = self.store.patient(scope, id).await? {
                *name = patient.name;
            }
        }
        Ok(unmonitored)
    }

    /// The open alert that explains this one, and of which the people of this tenant are told.
    /// A silent pipeline explains a silent gateway, and a silent gateway the silence behind it.
    pub(super) async fn inhibiting(
        &self,
        alert: &Alert,
        tenant: &str,
        now_us: i64,
    ) -> Result<Option<String>, QueryError> {
        let wider = if is_of_gateway(&alert.rule) {
            self.silent_pipeline(alert, now_us).await?
        } else if is_below_gateway(&alert.rule) && !alert.gateway.is_empty() {
            let open = self.open(&Scope::tenant(tenant), OF_TENANT_MAX).await?;
            let mut open = open.into_iter();
            open.find(|open| open.gateway == alert.gateway && is_of_gateway(&open.rule))
        } else {
            None
        };
        match wider {
            Some(wider) if self.is_told(&wider, tenant, now_us).await? => Ok(Some(wider.id)),
            _ => Ok(None),
        }
    }

    /// Open alerts without a patient.
    async fn open(&self, scope: &Scope, limit: usize) -> Result<Vec<Alert>, QueryError> {
        let query = AlertsQuery {
            patient: Some(String::new()),
            include_resolved: false,
            limit,
            ..AlertsQuery::default()
        };
        self.store.alerts(scope, &query).await
    }

    /// The answer is remembered, because a silent pipeline has many silent gateways. Both are
    /// stored together, so an answer from before the gateway's alert does not count.
    async fn silent_pipeline(
        &self,
        alert: &Alert,
        now_us: i64,
    ) -> Result<Option<Alert>, QueryError> {
        if let Some((pipeline, asked_us)) = &*self.pipeline.lock()
            && now_us.abs_diff(*asked_us) < PIPELINE_AGE_MAX_US.unsigned_abs()
            && (pipeline.is_some() || *asked_us > alert.recorded_us)
        {
            return Ok(pipeline.clone());
        }
        let open = self.open(&Scope::Service, WIDER_MAX).await?;
        let pipeline = open.into_iter().find(|open| open.rule == PIPELINE);
        *self.pipeline.lock() = Some((pipeline.clone(), now_us));
        Ok(pipeline)
    }

    /// A notice that cannot be read keeps nobody from being told: it counts as none.
    pub(super) async fn notices(&self, alert: &str) -> Result<Vec<NoticeRecord>, QueryError> {
        match self.store.notices(&Scope::Service, alert).await {
            Err(QueryError::Unreadable(reason)) => {
                tracing::error!(alert, reason, "the notices of an alert cannot be read");
                Ok(Vec::new())
            }
            read => read,
        }
    }

    /// Whether a notice of the alert went or goes to this tenant, or is expected.
    async fn is_told(&self, wider: &Alert, tenant: &str, now_us: i64) -> Result<bool, QueryError> {
        let records = self.notices(&wider.id).await?;
        let of_tenant = |notice: &Notice| notice.tenant == tenant;
        let mut own = records
            .into_iter()
            .filter(|record| record.notice.as_ref().is_some_and(of_tenant))
            .peekable();
        if own.peek().is_none() {
            return Ok(now_us - wider.recorded_us < TOLD_WITHIN_US);
        }
        let mut results = own.map(|record| record.outcome.map(|outcome| outcome.result()));
        Ok(results.any(|result| {
            matches!(
                result,
                None | Some(NoticeResult::Delivered | NoticeResult::Inhibited)
            )
        }))
    }
}

#[cfg(test)]
#[path = "subjects_tests.rs"]
mod tests;
