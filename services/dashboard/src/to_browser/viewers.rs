//! Places for watch streams, bounded for each account.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::sessions::Person;

/// Watch streams of one replica; a further stream is refused.
const VIEWERS_MAX: usize = 1_000;
/// Watch streams of one account: the tabs of a person, or screens that share a name. A further
/// stream is refused.
const VIEWERS_PER_ACCOUNT_MAX: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("{VIEWERS_MAX} pages are watched here already; try again later")]
    Replica,
    #[error("this account watches {VIEWERS_PER_ACCOUNT_MAX} pages already; close one of them")]
    Account,
}

/// By tenant and name.
type Places = HashMap<(String, String), usize>;

#[derive(Debug, Default)]
pub(crate) struct Viewers {
    places: Arc<Mutex<Places>>,
}

impl Viewers {
    pub(crate) fn enter(&self, person: &Person) -> Result<Place, Full> {
        let account = (person.tenant.clone(), person.name.clone());
        let mut places = self.places.lock();
        if places.values().sum::<usize>() >= VIEWERS_MAX {
            return Err(Full::Replica);
        }
        let taken = places.entry(account.clone()).or_default();
        if *taken >= VIEWERS_PER_ACCOUNT_MAX {
            return Err(Full::Account);
        }
        *taken += 1;
        Ok(Place {
            account,
            places: Arc::clone(&self.places),
        })
    }
}

/// Given back on drop.
#[derive(Debug)]
pub(crate) struct Place {
    account: (String, String),
    places: Arc<Mutex<Places>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.places.lock();
        if let Some(taken) = places.get_mut(&self.account) {
            *taken -= 1;
            if *taken == 0 {
                places.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::Role;

    use super::*;

    fn person(tenant: &str, number: usize) -> Person {
        Person {
            name: format!("person-{number}"),
            tenant: tenant.to_owned(),
            role: Role::Viewer,
            is_kiosk: false,
            reason: String::new(),
        }
    }

    #[test]
    fn who_watches_too_much_takes_no_place_of_others() {
        let viewers = Viewers::default();
        let greedy = person("one", 1);
        let mut own: Vec<Place> = (0..VIEWERS_PER_ACCOUNT_MAX)
            .map(|_| viewers.enter(&greedy).unwrap())
            .collect();
        assert_eq!(viewers.enter(&greedy).unwrap_err(), Full::Account);
        // The same name in another tenant is another account.
        drop(viewers.enter(&person("two", 1)).unwrap());
        own.pop();
        drop(viewers.enter(&greedy).unwrap());
        let rest = VIEWERS_MAX - own.len();
        let others: Vec<Place> = (0..rest)
            .map(|n| viewers.enter(&person("two", n)).unwrap())
            .collect();
        assert_eq!(
            viewers.enter(&person("two", rest)).unwrap_err(),
            Full::Replica
        );
        drop((own, others));
        assert!(viewers.places.lock().is_empty());
    }
}
