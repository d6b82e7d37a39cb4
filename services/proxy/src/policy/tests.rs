#![allow(clippy::unwrap_used)]
use rcgen::{CertificateParams, KeyPair, SanType};

use super::*;

fn policy(text: &str) -> Result<Policy, ConfigError> {
    let destinations = Destinations::parse(&["ingest:7001".to_owned()], &[]).unwrap();
    let ip = IpDestinations::parse(&["10.1.0.0/24".to_owned()], Vec::new()).unwrap();
    Policy::parse(destinations, ip, &[], text)
}

const GROUPS: &str = r#"
[[group]]
name = "wards"
gateways = ["acme/gw-1", "hospital/*"]
allow = ["updates.test:443"]
allow_private = ["pacs:104"]
allow_ip = ["10.8.0.0/24"]

[[group]]
name = "labs"
gateways = ["acme/gw-1", "acme/gw-2"]
allow = ["*.labs.test:*"]
"#;

#[test]
fn a_gateway_may_go_where_its_groups_may_besides_the_flags() {
    let policy = policy(GROUPS).unwrap();
    let admits = |tenant: &str, id: &str, to: &str| {
        let gateway = GatewayId::new(tenant, id);
        policy.admit(&gateway, &to.parse().unwrap()).is_some()
    };
    for (tenant, id, to, expected) in [
        ("acme", "gw-1", "ingest:7001", true),
        ("acme", "gw-1", "updates.test:443", true),
        ("acme", "gw-1", "a.labs.test:1", true),
        ("acme", "gw-2", "updates.test:443", false),
        ("acme", "gw-2", "a.labs.test:1", true),
        ("acme", "gw-10", "a.labs.test:1", false),
        ("hospital", "any", "pacs:104", true),
        ("hospital", "gw-1", "a.labs.test:1", false),
        ("other", "gw-1", "ingest:7001", true),
        ("other", "gw-1", "pacs:104", false),
    ] {
        assert_eq!(admits(tenant, id, to), expected, "{tenant}/{id} {to}");
    }
    let routes = |tenant: &str| policy.routes(&GatewayId::new(tenant, "gw-1"), &[]).unwrap();
    let leads = |tenant: &str, to: &str| routes(tenant).contains(to.parse().unwrap());
    assert!(leads("acme", "10.1.0.1") && leads("acme", "10.8.0.1"));
    assert!(leads("other", "10.1.0.1") && !leads("other", "10.8.0.1"));
}

fn certificate(names: Vec<SanType>) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().clone()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

#[test]
fn names_of_other_makes_become_gateways() {
    let policy = policy(
        r#"
        [[identity]]
        san = "dns:*.vpn.example.org"
        tenant = "acme"
        [[identity]]
        san = "uri:spiffe://corp.example/host/*"
        tenant = "corp"
        [[identity]]
        san = "email:anna@example.org"
        tenant = "acme"
        gateway = "anna"
        "#,
    )
    .unwrap();
    let mail = |name: &str| SanType::Rfc822Name(name.try_into().unwrap());
    let who = |names: Vec<SanType>| policy.identify(&certificate(names)).ok();
    let gateway = |tenant: &str, id: &str| Some(GatewayId::new(tenant, id));
    for (names, expected) in [
        (vec![dns("Lab-7.VPN.example.org")], gateway("acme", "lab-7")),
        (
            vec![dns("else.test"), dns("a.vpn.example.org")],
            gateway("acme", "a"),
        ),
        (
            vec![uri("spiffe://corp.example/host/x1")],
            gateway("corp", "x1"),
        ),
        (vec![mail("anna@example.org")], gateway("acme", "anna")),
        // Braid's own identity counts, whatever else is named.
        (
            vec![
                dns("a.vpn.example.org"),
                uri("spiffe://braid/tenant/t/gateway/g"),
            ],
            gateway("t", "g"),
        ),
        (
            vec![
                dns("a.vpn.example.org"),
                uri("spiffe://braid/service/ingest"),
            ],
            None,
        ),
        (vec![dns("vpn.example.org")], None),
        (vec![dns(".vpn.example.org")], None),
        (vec![dns("avpn.example.org")], None),
        (vec![uri("spiffe://corp.example/host/a/b")], None),
        (vec![mail("anna@example.org.evil")], None),
        (vec![uri("dns:a.vpn.example.org")], None),
        (Vec::new(), None),
    ] {
        assert_eq!(who(names.clone()), expected, "{names:?}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (text, says) in [
        ("x = 1", "unknown field"),
        ("[[group]]\nname = 'a'", "gateways"),
        (
            "[[group]]\nname = 'a'\ngateways = ['gw-1']",
            "neither TENANT/GATEWAY",
        ),
        (
            "[[group]]\nname = 'a'\ngateways = ['*/gw-1']",
            "neither TENANT/GATEWAY",
        ),
        (
            "[[group]]\nname = 'a'\ngateways = ['t/*']\nallow = ['host']",
            "group \"a\", allow",
        ),
        (
            "[[group]]\nname = 'a'\ngateways = ['t/*']\nallow_ip = ['1.2.3.4/8']",
            "allow_ip",
        ),
        ("[[identity]]\nsan = 'a.test'\ntenant = 't'", "none of dns:"),
        ("[[identity]]\nsan = 'dns:*.*'\ntenant = 't'", "two stars"),
        (
            "[[identity]]\nsan = 'dns:a.test'\ntenant = 't'",
            "either a star or a gateway",
        ),
        (
            "[[identity]]\nsan = 'dns:*'\ntenant = 't'\ngateway = 'g'",
            "either a star",
        ),
        ("[[identity]]\nsan = 'dns:*'\ntenant = 'a b'", "letter"),
        (
            "[[identity]]\nsan = 'dns:'\ntenant = 't'\ngateway = 'g'",
            "nobody",
        ),
    ] {
        let refused = policy(text).unwrap_err();
        assert_eq!(refused.field, "policy", "{text}");
        assert!(refused.reason.contains(says), "{text}: {}", refused.reason);
    }
    let many: String = (0..=IDENTITIES_MAX)
        .map(|at| format!("[[identity]]\nsan = 'dns:*.{at}.test'\ntenant = 't'\n"))
        .collect();
    assert!(policy(&many).unwrap_err().reason.contains("more than"));
}
