//! vitals
