//! Name resolution of a statically linked glibc: /etc/hosts and DNS, both of which it contains.
//!
//! For every other word of /etc/nsswitch.conf (`resolve`, `mymachines`, `systemd`) glibc would load a library of the host,
//! which must come from the very glibc that was linked, and may crash the process if it does not.

use std::ffi::{CStr, c_char, c_int};

/// Databases that this program asks: names of hosts, and the home directory of the user.
const DATABASES: [(&CStr, &CStr); 2] = [(c"hosts", c"files dns"), (c"passwd", c"files")];

/// Sets the sources of names for this process, whatever /etc/nsswitch.conf says. Call it before the first thread starts.
#[allow(unsafe_code, reason = "no crate declares this function of glibc")]
pub(crate) fn use_files_and_dns() {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }
    for (database, sources) in DATABASES {
        // SAFETY: both are strings that end with NUL and live as long as the program; glibc keeps a copy.
        let failed = unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) };
        assert_eq!(failed, 0, "glibc knows {database:?}");
    }
}
