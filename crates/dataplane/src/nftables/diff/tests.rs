//! Tests of differences.
