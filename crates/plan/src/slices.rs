//! Pods -> the EndpointSlices of one Service.

use model::{Name, ObjectKey, Slice, SliceContent};

/// The slices of one Service and one family between packing and writing. Hints are put on here.
#[derive(Debug, Default)]
pub struct Packing<'a> {
    /// Slices to make.
    pub creates: Vec<SliceContent>,
    /// Stored slices to change, by name, with what they will hold.
    pub updates: Vec<(Name, SliceContent)>,
    /// Stored slices that hold what they should.
    pub unchanged: Vec<&'a Slice>,
    /// Stored slices to delete.
    pub deletes: Vec<ObjectKey>,
}
