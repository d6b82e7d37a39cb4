use async_trait::async_trait;

use crate::{
    Scope,
    error::{QueryError, WriteError},
};

/// Which of NEWS2's two SpO2 scales applies to a patient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SpO2Scale {
    #[default]
    One,
    /// Hypercapnic respiratory failure, target 88 to 92 %; set by a clinician.
    Two,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatientEntry {
    /// Unique over all tenants.
    pub id: String,
    pub tenant: String,
    pub name: String,
    pub spo2_scale: SpO2Scale,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayEntry {
    /// Unique over all tenants.
    pub id: String,
    pub tenant: String,
}

/// A sensor: who wears it and which gateway may speak for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Unique over all tenants.
    pub id: String,
    pub tenant: String,
    pub gateway: String,
    pub patient: String,
    pub registered_us: i64,
}

/// Patients, gateways and devices. Putting is idempotent: it creates or changes. An id that another tenant has is
/// refused with `Invalid`, and so is a device whose gateway or patient belongs to another tenant.
#[async_trait]
pub trait Register: Send + Sync {
    async fn put_patient(&self, entry: &PatientEntry) -> Result<(), WriteError>;
    async fn put_gateway(&self, entry: &GatewayEntry) -> Result<(), WriteError>;
    /// Also creates its gateway and its patient (named by its id) when they are not there.
    async fn put_device(&self, entry: &DeviceEntry) -> Result<(), WriteError>;
    /// False: it was not there. Its samples stay.
    async fn remove_device(&self, scope: &Scope, id: &str) -> Result<bool, WriteError>;

    async fn patient(&self, scope: &Scope, id: &str) -> Result<Option<PatientEntry>, QueryError>;
    async fn patients(&self, scope: &Scope) -> Result<Vec<PatientEntry>, QueryError>;
    async fn gateways(&self, scope: &Scope) -> Result<Vec<GatewayEntry>, QueryError>;
    async fn device(&self, scope: &Scope, id: &str) -> Result<Option<DeviceEntry>, QueryError>;
    /// `gateway`: only those of this one.
    async fn devices(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<DeviceEntry>, QueryError>;

    /// Devices of all tenants that were registered after `since_us`, by the clock of whoever registered them.
    async fn registered_since(&self, since_us: i64) -> Result<Vec<DeviceEntry>, QueryError>;
}

/// Why nothing of this name is registered; names that the system keeps for itself.
pub(crate) fn reserved(what: &str, id: &str) -> Option<String> {
    contracts::canary::is_canary(id)
        .then(|| format!("{what} `{id}`: the name belongs to the system's own test alert"))
}
