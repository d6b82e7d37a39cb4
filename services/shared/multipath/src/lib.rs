//! multipath
