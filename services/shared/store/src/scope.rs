//! Which data a query may see.

/// The data that a query may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// A service asks for itself, not for a person.
    Service,
    /// A person or device of this tenant asks.
    Tenant(String),
}

impl Scope {
    pub fn tenant(name: impl Into<String>) -> Scope {
        Scope::Tenant(name.into())
    }

    /// `None`: all tenants.
    pub fn as_tenant(&self) -> Option<&str> {
        match self {
            Scope::Service => None,
            Scope::Tenant(name) => Some(name),
        }
    }
}
