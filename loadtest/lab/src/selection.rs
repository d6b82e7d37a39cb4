//! Which figures somebody wants to see.

use crate::scenario::Direction;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Selection {
    /// Only figures whose id starts with this.
    #[arg(long, env = "BRAID_LAB_ONLY")]
    pub only: Option<String>,
    /// The sender; both when not given.
    #[arg(long, env = "BRAID_LAB_DIRECTION", value_enum)]
    pub direction: Option<Direction>,
}

impl Selection {
    /// Whether figures with this beginning of an id are among them.
    pub fn wants(&self, prefix: &str) -> bool {
        let related = |only: &String| only.starts_with(prefix) || prefix.starts_with(only.as_str());
        self.only.as_ref().is_none_or(related)
    }

    /// The same, unless they are all of `part`, which is asked for by itself.
    pub fn wants_beside(&self, prefix: &str, part: &str) -> bool {
        let within = self.only.as_ref().filter(|only| only.starts_with(part));
        within.is_none() && self.wants(prefix)
    }

    /// The directions asked for, with what the ids of their figures carry.
    pub fn directions(&self) -> impl Iterator<Item = (Direction, &'static str)> + use<> {
        let only = self.direction;
        [(Direction::Upload, ""), (Direction::Download, ".download")]
            .into_iter()
            .filter(move |(direction, _)| only.is_none_or(|only| only == *direction))
    }
}
