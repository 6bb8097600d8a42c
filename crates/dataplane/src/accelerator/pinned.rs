//! [`AcceleratorKernel`] over bpf(), by aya. Maps and links are pinned, so that they outlive this process and the next one
//! takes them over:
//!
//! ```text
//! /sys/fs/bpf/zoneward/OBJECT-FRONTENDS-CHUNKS-CGROUP/{frontends,slots,counts,settings}
//!                                                     {connect4,connect6,getpeername4,getpeername6}
//! ```
//!
//! The name says with which object, capacity and cgroup. Another object or capacity gets a folder of its own, which takes
//! over when it is complete: of two attached programs, the second finds no cluster IP any more.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuHashMap};
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, CgroupSockAddr};
use aya::{Ebpf, EbpfLoader};
use model::Protocol;

use super::connect::MapEntries;
use super::diff::MapChange;
use super::entries::{
    self, AcceleratorSettings, AddressBytes, ChunkBytes, ChunkKey, ChunkKeyBytes, FrontendBytes,
    FrontendEntry, PairBytes, SettingsBytes,
};
use super::host;
use super::kernel::{AcceleratorKernel, MapCapacity};
use crate::backend::BackendError;
use crate::nftables::apply::ConnectionCount;

/// The object that `cargo xtask bpf` makes of `bpf/accelerator.c`.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/accelerator.o");
/// Where programs and maps of the node proxy are pinned.
pub const PIN_FOLDER: &str = "/sys/fs/bpf/zoneward";

const MAPS: [&str; 4] = ["frontends", "slots", "counts", "settings"];
const PROGRAMS: [&str; 4] = ["connect4", "connect6", "getpeername4", "getpeername6"];

/// The accelerator of a cgroup, pinned below a folder.
pub struct PinnedAccelerator {
    folder: PathBuf,
    cgroup: PathBuf,
    open: Option<OpenMaps>,
}

struct OpenMaps {
    /// Where they are pinned.
    place: PathBuf,
    frontends: HashMap<MapData, AddressBytes, FrontendBytes>,
    slots: HashMap<MapData, ChunkKeyBytes, ChunkBytes>,
    counts: PerCpuHashMap<MapData, PairBytes, u64>,
    settings: Array<MapData, SettingsBytes>,
    /// Loaded and not attached yet.
    programs: Option<Ebpf>,
}

impl PinnedAccelerator {
    /// Pins below `folder` and attaches to `cgroup`. Nothing is loaded yet.
    pub fn new(folder: impl Into<PathBuf>, cgroup: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), cgroup: cgroup.into(), open: None }
    }

    /// Opens the maps of a running node proxy, to read them.
    pub fn attached(folder: impl Into<PathBuf>) -> Result<Self, BackendError> {
        let mut accelerator = Self::new(folder, PathBuf::new());
        let places = pinned(&accelerator.folder);
        let Some(place) = places.into_iter().find(|place| is_complete(place)) else {
            let folder = accelerator.folder.display();
            return Err(BackendError::failed(format!("{folder}: no accelerator is pinned there")));
        };
        accelerator.open = Some(OpenMaps::open(&place, None).map_err(|error| failed(&place, error))?);
        Ok(accelerator)
    }

    /// Deletes counters of these pairs of frontend and endpoint; they begin again with the next connection.
    pub fn forget_counts(&mut self, pairs: &[(SocketAddr, SocketAddr)]) -> Result<(), BackendError> {
        let maps = self.maps()?;
        for (frontend, endpoint) in pairs {
            gone(maps.counts.remove(&entries::pair(*frontend, *endpoint)))
                .map_err(|error| failed(&maps.place, error))?;
        }
        Ok(())
    }

    fn maps(&mut self) -> Result<&mut OpenMaps, BackendError> {
        self.open.as_mut().ok_or_else(|| BackendError::failed("the maps of the accelerator are not open"))
    }

    /// What the folders of this object and cgroup begin and end with.
    fn marks(&self) -> Result<(String, String), BackendError> {
        let inode = fs::metadata(&self.cgroup).map_err(|error| failed(&self.cgroup, error))?.ino();
        let digest = ring::digest::digest(&ring::digest::SHA256, OBJECT);
        let object: String = digest.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok((format!("{object}-"), format!("-{inode:x}")))
    }

    /// A folder that an earlier process left, with room for this capacity.
    fn left(&self, capacity: MapCapacity) -> Result<Option<(PathBuf, MapCapacity)>, BackendError> {
        let (object, cgroup) = self.marks()?;
        let mut found =
            pinned(&self.folder).into_iter().filter(|place| is_complete(place)).filter_map(|place| {
                let name = place.file_name()?.to_str()?;
                let (frontends, chunks) =
                    name.strip_prefix(&object)?.strip_suffix(&cgroup)?.split_once('-')?;
                let held = MapCapacity { frontends: frontends.parse().ok()?, chunks: chunks.parse().ok()? };
                held.holds(capacity.frontends as usize, capacity.chunks as usize).then_some((place, held))
            });
        Ok(found.next())
    }

    /// Loads the programs with empty maps, pinned in a new folder.
    fn create(&self, capacity: MapCapacity) -> Result<OpenMaps, BackendError> {
        let (object, cgroup) = self.marks()?;
        let MapCapacity { frontends, chunks } = capacity;
        let place = self.folder.join(format!("{object}{frontends}-{chunks}{cgroup}"));
        // An earlier process ended before it was complete.
        remove_folder(&place).map_err(|error| failed(&place, error))?;
        let loaded = EbpfLoader::new()
            .map_max_entries("frontends", frontends)
            .map_max_entries("slots", chunks)
            .map_max_entries("counts", chunks.max(frontends))
            .load(OBJECT);
        let mut programs =
            loaded.map_err(|error| BackendError::failed(format!("loading eBPF maps: {}", chain(&error))))?;
        for name in PROGRAMS {
            program(&mut programs, name)
                .and_then(|program| program.load().map_err(|error| chain(&error)))
                .map_err(|error| BackendError::failed(format!("loading the eBPF program {name}: {error}")))?;
        }
        fs::create_dir_all(&place).map_err(|error| failed(&place, error))?;
        for name in MAPS {
            let path = place.join(name);
            let map =
                programs.map(name).ok_or_else(|| BackendError::failed(format!("no eBPF map {name}")))?;
            map.pin(&path).map_err(|error| {
                let advice = "is a BPF file system mounted on /sys/fs/bpf?";
                BackendError::failed(format!("pinning {}: {}; {advice}", path.display(), chain(&error)))
            })?;
        }
        OpenMaps::open(&place, Some(programs)).map_err(|error| failed(&place, error))
    }
}

impl OpenMaps {
    fn open(place: &Path, programs: Option<Ebpf>) -> Result<Self, MapError> {
        let map = |name: &str| Map::from_map_data(MapData::from_pin(place.join(name))?);
        Ok(Self {
            place: place.to_owned(),
            frontends: HashMap::try_from(map("frontends")?)?,
            slots: HashMap::try_from(map("slots")?)?,
            counts: PerCpuHashMap::try_from(map("counts")?)?,
            settings: Array::try_from(map("settings")?)?,
            programs,
        })
    }

    fn apply(&mut self, change: &MapChange) -> Result<(), MapError> {
        match change {
            MapChange::PutChunk(key, slots) => self.slots.insert(key.bytes(), entries::chunk(slots), 0),
            MapChange::PutFrontend(at, entry) => {
                self.frontends.insert(entries::address(*at), entry.bytes(), 0)
            }
            MapChange::DeleteFrontend(at) => gone(self.frontends.remove(&entries::address(*at))),
            MapChange::DeleteChunk(key) => gone(self.slots.remove(&key.bytes())),
        }
    }

    fn read(&self) -> Result<MapEntries, MapError> {
        let mut read = MapEntries::default();
        for entry in self.frontends.iter() {
            let (key, value) = entry?;
            let address = entries::read_address(&key);
            read.frontends.extend(address.map(|address| (address, FrontendEntry::read(&value))));
        }
        for entry in self.slots.iter() {
            let (key, value) = entry?;
            read.chunks.insert(ChunkKey::read(&key), entries::read_chunk(&value));
        }
        read.settings = AcceleratorSettings::read(&self.settings.get(&0, 0)?);
        Ok(read)
    }

    /// Attaches and pins each program.
    fn attach(&mut self, cgroup: &Path) -> Result<(), BackendError> {
        let Some(programs) = &mut self.programs else { return Ok(()) };
        let cgroup_file = File::open(cgroup).map_err(|error| failed(cgroup, error))?;
        for name in PROGRAMS {
            let path = self.place.join(name);
            let attached = program(programs, name).and_then(|program| {
                let id = program.attach(&cgroup_file, CgroupAttachMode::Single).map_err(|e| chain(&e))?;
                let link = program.take_link(id).map_err(|error| chain(&error))?;
                let link = FdLink::try_from(link).map_err(|error| chain(&error))?;
                link.pin(&path).map(drop).map_err(|error| chain(&error))
            });
            attached.map_err(|error| {
                BackendError::failed(format!("attaching {name} to {}: {error}", cgroup.display()))
            })?;
        }
        self.programs = None;
        Ok(())
    }
}

impl AcceleratorKernel for PinnedAccelerator {
    fn open(&mut self, capacity: MapCapacity) -> Result<MapCapacity, BackendError> {
        self.open = None;
        let left = self.left(capacity)?;
        let reused = left.and_then(|(place, held)| Some((OpenMaps::open(&place, None).ok()?, held)));
        let (maps, held) = match reused {
            Some(reused) => reused,
            None => (self.create(capacity)?, capacity),
        };
        self.open = Some(maps);
        Ok(held)
    }

    fn entries(&mut self) -> Result<MapEntries, BackendError> {
        let maps = self.maps()?;
        maps.read().map_err(|error| failed(&maps.place, error))
    }

    fn apply(&mut self, change: &MapChange) -> Result<(), BackendError> {
        let maps = self.maps()?;
        maps.apply(change).map_err(|error| failed(&maps.place, error))
    }

    fn set(&mut self, settings: AcceleratorSettings) -> Result<(), BackendError> {
        let maps = self.maps()?;
        let written = maps.settings.set(0, settings.bytes(), 0);
        written.map_err(|error| failed(&maps.place, error))
    }

    fn attach(&mut self) -> Result<(), BackendError> {
        let cgroup = self.cgroup.clone();
        let maps = self.maps()?;
        maps.attach(&cgroup)?;
        let own = maps.place.clone();
        for place in pinned(&self.folder).into_iter().filter(|place| *place != own) {
            remove_folder(&place).map_err(|error| failed(&place, error))?;
        }
        Ok(())
    }

    fn is_attached(&mut self) -> bool {
        self.open.as_ref().is_some_and(|maps| maps.programs.is_none() && is_complete(&maps.place))
    }

    fn remove(&mut self) -> Result<(), BackendError> {
        // The kernel detaches a moment after the pins are gone; until then the entries have expired.
        let _ = self.set(AcceleratorSettings::default());
        self.open = None;
        remove_pins(&self.folder, false).map(drop)
    }

    fn counts(&mut self) -> Result<Vec<ConnectionCount>, BackendError> {
        let maps = self.maps()?;
        let mut found = Vec::new();
        for entry in maps.counts.iter() {
            let (key, values) = entry.map_err(|error| failed(&maps.place, error))?;
            let pair = entries::read_pair(&key);
            found.extend(pair.map(|(frontend, endpoint)| ConnectionCount {
                protocol: Protocol::Tcp,
                frontend,
                endpoint,
                connections: values.iter().sum(),
            }));
        }
        Ok(found)
    }

    fn now(&mut self) -> u64 {
        host::monotonic_ns()
    }

    fn node_netns(&mut self) -> Result<u64, BackendError> {
        host::netns_cookie()
    }
}

/// Where the node proxy of this machine pins.
pub fn pinned_folder() -> &'static Path {
    Path::new(PIN_FOLDER)
}

/// Removes what is pinned below a folder, which detaches the programs. Needs no bpf(). Returns the folders.
pub fn remove_pins(folder: &Path, dry_run: bool) -> Result<Vec<PathBuf>, BackendError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let places = pinned(folder);
    if !dry_run {
        for place in &places {
            remove_folder(place).map_err(|error| failed(place, error))?;
        }
        match fs::remove_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(folder, error)),
            _ => {}
        }
    }
    Ok(places)
}

/// The folders below the pin folder, sorted.
fn pinned(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut places: Vec<PathBuf> = found.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    places.sort();
    places
}

fn is_complete(place: &Path) -> bool {
    MAPS.iter().chain(&PROGRAMS).all(|name| place.join(name).exists())
}

/// Links first: without its maps a program would keep old entries.
fn remove_folder(place: &Path) -> io::Result<()> {
    for name in PROGRAMS.iter().chain(&MAPS) {
        match fs::remove_file(place.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match fs::remove_dir(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn program<'p>(programs: &'p mut Ebpf, name: &str) -> Result<&'p mut CgroupSockAddr, String> {
    let program = programs.program_mut(name).ok_or_else(|| "it is not in the object".to_owned())?;
    program.try_into().map_err(|error| chain(&error))
}

/// An entry that is not there needs no deletion.
fn gone(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn failed(path: &Path, error: impl std::error::Error) -> BackendError {
    BackendError::failed(format!("{}: {}", path.display(), chain(&error)))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
