//! Tests of planning slices.
