//! Identities of clients and their destinations, beyond the flags: a TOML file that is read again
//! when it changes (`policy_file`).
//!
//! ```toml
//! [[group]]                       # destinations of some gateways, besides those of the flags
//! name = "wards"
//! gateways = ["acme/gw-1", "hospital/*"]
//! allow = ["updates.example.org:443"]
//! allow_private = ["pacs:104"]
//! allow_ip = ["10.8.0.0/24"]
//!
//! [[identity]]                    # certificates of other makes, by a name in them
//! san = "dns:*.vpn.example.org"
//! tenant = "acme"                 # the gateway's id is what the star stands for
//! ```
//!
//! The first identity that fits a name of the certificate counts. A certificate with an identity of
//! Braid keeps it. Only authorities of `--ca` are believed, whatever the file says.

use std::net::IpAddr;

use ip_packets::{IpPrefix, IpRanges};
use rustls_pki_types::CertificateDer;
use service_kit::{
    ConfigError,
    tls::{GatewayId, PeerId, PeerIdError},
};
use tunnel::Authority;
use x509_parser::{extensions::GeneralName, prelude::*};

use crate::{
    destinations::{Admitted, Destinations},
    ip_destinations::IpDestinations,
};

/// Bytes of the file; a longer one is refused.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Groups of a policy.
const GROUPS_MAX: usize = 256;
/// Gateways of all groups together.
const GATEWAYS_MAX: usize = 4_096;
/// Identities by certificate that a policy maps.
const IDENTITIES_MAX: usize = 256;

/// Names of a certificate that are compared; further ones are ignored.
const NAMES_MAX: usize = 64;

const EXAMPLE: &str = "--policy policy.toml, with [[group]] name, gateways, allow";

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    group: Vec<GroupOf>,
    #[serde(default)]
    identity: Vec<IdentityOf>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupOf {
    name: String,
    gateways: Vec<String>,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    allow_private: Vec<String>,
    #[serde(default)]
    allow_ip: Vec<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityOf {
    san: String,
    tenant: String,
    gateway: Option<String>,
}

/// A gateway, or all of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    tenant: String,
    id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    members: Vec<Member>,
    destinations: Destinations,
    ip: IpDestinations,
}

/// Kinds of names that a certificate may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dns,
    Uri,
    Email,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    kind: Kind,
    /// Before and after the star; without one the second is `None`.
    before: String,
    after: Option<String>,
    tenant: String,
    gateway: Option<String>,
}

/// The flags and the file together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    destinations: Destinations,
    ip: IpDestinations,
    groups: Vec<Group>,
    identities: Vec<Identity>,
}

fn refuse(reason: String) -> ConfigError {
    ConfigError::new("policy", reason, EXAMPLE)
}

impl Policy {
    /// `pools` are the address pools of gateways; `text` is the file's.
    pub(crate) fn parse(
        destinations: Destinations,
        ip: IpDestinations,
        pools: &[IpPrefix],
        text: &str,
    ) -> Result<Self, ConfigError> {
        let document: Document =
            toml::from_str(text).map_err(|error| refuse(error.to_string().trim().to_owned()))?;
        let members: usize = document.group.iter().map(|it| it.gateways.len()).sum();
        for (what, count, max) in [
            ("groups", document.group.len(), GROUPS_MAX),
            ("gateways of groups", members, GATEWAYS_MAX),
            ("identities", document.identity.len(), IDENTITIES_MAX),
        ] {
            if count > max {
                return Err(refuse(format!("{count} {what} are more than {max}")));
            }
        }
        let groups = document.group.iter().map(|it| group(it, pools));
        let policy = Self {
            groups: groups.collect::<Result<_, _>>()?,
            identities: (document.identity.iter())
                .map(identity)
                .collect::<Result<_, _>>()?,
            destinations,
            ip,
        };
        // Every request is compared with the entries of all groups that its gateway is in.
        let lists = || policy.groups.iter();
        Destinations::check_count(lists().map(|it| &it.destinations))?;
        IpDestinations::check_count(lists().map(|it| &it.ip).chain([&policy.ip]))?;
        Ok(policy)
    }

    /// Whether every request is refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.destinations.is_empty() && self.groups.iter().all(|it| it.destinations.is_empty())
    }

    fn groups_of<'a>(&'a self, gateway: &'a GatewayId) -> impl Iterator<Item = &'a Group> + Clone {
        let is_in = |member: &Member| {
            member.tenant == gateway.tenant
                && (member.id.as_ref()).is_none_or(|only| *only == gateway.id)
        };
        (self.groups.iter()).filter(move |group| group.members.iter().any(is_in))
    }

    /// Returns `None` if the destination is refused.
    pub(crate) fn admit(&self, gateway: &GatewayId, authority: &Authority) -> Option<Admitted> {
        let groups = self.groups_of(gateway).map(|group| &group.destinations);
        let lists = [&self.destinations].into_iter().chain(groups);
        Destinations::admit(lists, &gateway.tenant, authority)
    }

    /// The routes of a gateway on a machine with these addresses; `None` if it has too many.
    pub(crate) fn routes(&self, gateway: &GatewayId, own: &[IpAddr]) -> Option<IpRanges> {
        let mut routes = self.ip.routes(&gateway.tenant, own)?;
        for group in self.groups_of(gateway) {
            for range in group.ip.routes(&gateway.tenant, own)?.as_slice() {
                routes.add(*range);
            }
        }
        Some(routes)
    }

    /// The gateway of a certificate whose chain is verified, or why it is none.
    pub(crate) fn identify(&self, certificate: &CertificateDer<'_>) -> Result<GatewayId, String> {
        let refused = match PeerId::from_certificate(certificate) {
            Ok(PeerId::Gateway(gateway)) => return Ok(gateway),
            Ok(PeerId::Service { noun }) => {
                return Err(format!("the certificate is of the service {noun}"));
            }
            Err(error @ PeerIdError::Certificate(_)) => return Err(error.to_string()),
            Err(error) => error.to_string(),
        };
        let mapped = self.identities.iter().find_map(|identity| {
            names(certificate)
                .into_iter()
                .find_map(|(kind, name)| identity.gateway(kind, &name))
        });
        mapped.ok_or(refused)
    }
}

/// The names of a certificate, of the kinds that can be mapped.
fn names(certificate: &[u8]) -> Vec<(Kind, String)> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let named = names.value.general_names.iter().take(NAMES_MAX);
    named
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((Kind::Dns, name.to_ascii_lowercase())),
            GeneralName::URI(name) => Some((Kind::Uri, (*name).to_owned())),
            GeneralName::RFC822Name(name) => Some((Kind::Email, (*name).to_owned())),
            _ => None,
        })
        .collect()
}

impl Identity {
    fn gateway(&self, kind: Kind, name: &str) -> Option<GatewayId> {
        if kind != self.kind {
            return None;
        }
        let rest = name.strip_prefix(self.before.as_str())?;
        let id = match &self.after {
            Some(after) => rest.strip_suffix(after.as_str())?,
            None if rest.is_empty() => "",
            None => return None,
        };
        let id = self.gateway.as_deref().unwrap_or(id);
        checked(&self.tenant, id)
    }
}

/// A gateway whose names may stand in an identity.
fn checked(tenant: &str, id: &str) -> Option<GatewayId> {
    match PeerId::gateway(tenant, id).to_string().parse() {
        Ok(PeerId::Gateway(gateway)) => Some(gateway),
        _ => None,
    }
}

fn group(it: &GroupOf, pools: &[IpPrefix]) -> Result<Group, ConfigError> {
    let within = |error: ConfigError| {
        let reason = format!("group {:?}, {}: {}", it.name, error.field, error.reason);
        refuse(reason)
    };
    let member = |text: &String| {
        let parts = text
            .split_once('/')
            .filter(|(tenant, id)| checked(tenant, if *id == "*" { "any" } else { id }).is_some());
        let (tenant, id) = parts.ok_or_else(|| {
            let reason = "is neither TENANT/GATEWAY nor TENANT/*";
            refuse(format!("group {:?}: {text:?} {reason}", it.name))
        })?;
        Ok(Member {
            tenant: tenant.to_owned(),
            id: (id != "*").then(|| id.to_owned()),
        })
    };
    Ok(Group {
        members: it.gateways.iter().map(member).collect::<Result<_, _>>()?,
        destinations: Destinations::parse(&it.allow, &it.allow_private).map_err(within)?,
        ip: IpDestinations::parse(&it.allow_ip, pools.to_vec()).map_err(within)?,
    })
}

fn identity(it: &IdentityOf) -> Result<Identity, ConfigError> {
    let refused = |reason: &str| refuse(format!("identity {:?} {reason}", it.san));
    let (kind, pattern) = match it.san.split_once(':') {
        Some(("dns", name)) => (Kind::Dns, name.to_ascii_lowercase()),
        Some(("uri", name)) => (Kind::Uri, name.to_owned()),
        Some(("email", name)) => (Kind::Email, name.to_owned()),
        _ => return Err(refused("begins with none of dns:, uri: and email:")),
    };
    let (before, after) = match pattern.split_once('*') {
        Some((_, after)) if after.contains('*') => return Err(refused("has two stars")),
        Some((before, after)) => (before.to_owned(), Some(after.to_owned())),
        None if pattern.is_empty() => return Err(refused("names nobody")),
        None => (pattern, None),
    };
    if after.is_some() == it.gateway.is_some() {
        return Err(refused("needs either a star or a gateway, which is its id"));
    }
    if checked(&it.tenant, it.gateway.as_deref().unwrap_or("any")).is_none() {
        return Err(refused(
            "leads to a tenant or gateway with a letter that names may not have",
        ));
    }
    Ok(Identity {
        kind,
        before,
        after,
        tenant: it.tenant.clone(),
        gateway: it.gateway.clone(),
    })
}

#[cfg(test)]
mod tests;
