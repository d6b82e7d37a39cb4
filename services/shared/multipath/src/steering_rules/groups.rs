//! Groups of gateways in a steering document, and the document as one gateway obeys it.
//!
//! path-telemetry resolves the groups, so that a gateway learns the names of no other gateways, and
//! an older gateway obeys rules of groups too.

use super::document::{Document, Group, Rule};

impl Group {
    fn has(&self, gateway: &str) -> bool {
        let is_it = |entry: &String| match entry.strip_suffix('*') {
            Some(beginning) => gateway.starts_with(beginning),
            None => entry == gateway,
        };
        self.gateways.iter().any(is_it)
    }
}

impl Document {
    /// Names of the groups that the gateway is in, in the order of the document.
    pub fn groups_of(&self, gateway: &str) -> Vec<&str> {
        let groups = self.groups.iter().filter(|group| group.has(gateway));
        groups.map(|group| group.name.as_str()).collect()
    }

    /// The document of this gateway alone: rules of other groups are left out, and those of its own
    /// groups hold without a condition. A second call changes nothing.
    pub fn for_gateway(&self, gateway: &str) -> Self {
        let groups = self.groups_of(gateway);
        let own = |rule: &Rule| {
            let wanted = &rule.matches.group;
            if wanted.is_empty() {
                return Some(rule.clone());
            }
            let is_in = wanted.iter().any(|name| groups.contains(&name.as_str()));
            is_in.then(|| {
                let mut rule = rule.clone();
                rule.matches.group = Vec::new();
                rule
            })
        };
        let terms = self.gateways.iter().filter(|terms| terms.name == gateway);
        Self {
            format: self.format,
            freshness_ms: self.freshness_ms,
            gateways: terms.cloned().collect(),
            groups: Vec::new(),
            accesses: self.accesses.clone(),
            rules: self.rules.iter().filter_map(own).collect(),
        }
    }
}
