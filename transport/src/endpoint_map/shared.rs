//! The endpoint map that a running process uses: complete snapshots for any thread, swapped by a reload. Off the hot path:
//! a link resolves once per connect, not per message.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::{EndpointMap, EndpointMapError, TaskName};

/// An endpoint map that can be reloaded while it is in use.
///
/// Clones share one map. A reader takes a snapshot and keeps it for as long as it needs one
/// consistent view.
#[derive(Clone, Debug)]
pub struct SharedEndpointMap {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where the map came from; `None` for a map that was built in memory.
    path: Option<PathBuf>,
    current: RwLock<Arc<EndpointMap>>,
    /// Held from reading the file to the swap, so that of two concurrent reloads the one that read the older file cannot win.
    reloading: Mutex<()>,
}

impl SharedEndpointMap {
    /// Loads the map at `path`, which every reload reads again.
    ///
    /// # Errors
    ///
    /// As [`EndpointMap::load`].
    pub fn load(path: impl Into<PathBuf>) -> Result<SharedEndpointMap, EndpointMapError> {
        let path = path.into();
        let map = EndpointMap::load(&path)?;
        Ok(SharedEndpointMap::with(map, Some(path)))
    }

    /// Shares a map that was built in memory; a reload finds it unchanged.
    pub fn fixed(map: EndpointMap) -> SharedEndpointMap {
        SharedEndpointMap::with(map, None)
    }

    fn with(map: EndpointMap, path: Option<PathBuf>) -> SharedEndpointMap {
        SharedEndpointMap {
            inner: Arc::new(Inner { path, current: RwLock::new(Arc::new(map)), reloading: Mutex::new(()) }),
        }
    }

    /// The file that a reload reads; `None` for a fixed map.
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }

    pub fn snapshot(&self) -> Arc<EndpointMap> {
        // Nothing that can panic runs under this lock, and the value is replaced as a whole.
        let current = self.inner.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the file again and replaces the map, all or nothing.
    ///
    /// # Errors
    ///
    /// As [`EndpointMap::load`]; the old map stays in use.
    pub fn reload(&self) -> Result<Changed, EndpointMapError> {
        let Some(path) = &self.inner.path else {
            return Ok(Changed::default());
        };
        let reloading = self.inner.reloading.lock();
        let _reloading = reloading.unwrap_or_else(PoisonError::into_inner);
        let new = EndpointMap::load(path)?;
        let changed = Changed::between(&self.snapshot(), &new);
        if !changed.is_empty() {
            let current = self.inner.current.write();
            *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        }
        Ok(changed)
    }
}

/// What a reload changed; each list is sorted by transport address, then by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    pub added: Vec<TaskName>,
    pub removed: Vec<TaskName>,
    /// Tasks whose transport address changed.
    pub moved: Vec<TaskName>,
}

impl Changed {
    pub fn between(old: &EndpointMap, new: &EndpointMap) -> Changed {
        let mut changed = Changed::default();
        for (task, address) in new.iter() {
            match old.resolve(task.as_str()) {
                None => changed.added.push(task.clone()),
                Some(before) if before != address => changed.moved.push(task.clone()),
                Some(_) => {}
            }
        }
        let gone = old.iter().map(|(task, _)| task);
        let gone = gone.filter(|task| new.resolve(task.as_str()).is_none());
        changed.removed.extend(gone.cloned());
        changed
    }

    /// True if both maps are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.moved.is_empty()
    }
}

/// Prints the numbers of tasks, for a log line.
impl fmt::Display for Changed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (added, removed, moved) = (self.added.len(), self.removed.len(), self.moved.len());
        write!(out, "{added} added, {removed} removed, {moved} moved")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn names(tasks: &[TaskName]) -> Vec<&str> {
        tasks.iter().map(TaskName::as_str).collect()
    }

    #[test]
    fn a_reload_is_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        std::fs::write(&path, "a:1=h:7\nb:1=h:7\nc:1=h:7\n").unwrap();
        let shared = SharedEndpointMap::load(&path).unwrap();
        assert_eq!(shared.path(), Some(path.as_path()));
        let before = shared.snapshot();
        assert!(shared.reload().unwrap().is_empty());
        assert!(Arc::ptr_eq(&before, &shared.snapshot()));

        std::fs::write(&path, "a:1=h:7\nb:1=h:8\nd:1=h:7\ne:1\n").unwrap();
        assert!(shared.reload().is_err());
        assert!(Arc::ptr_eq(&before, &shared.snapshot()));

        std::fs::write(&path, "a:1=h:7\nb:1=h:8\nd:1=h:7\n").unwrap();
        let changed = shared.reload().unwrap();
        assert_eq!(names(&changed.added), ["d:1"]);
        assert_eq!(names(&changed.removed), ["c:1"]);
        assert_eq!(names(&changed.moved), ["b:1"]);
        assert_eq!(changed.to_string(), "1 added, 1 removed, 1 moved");
        assert_eq!(*shared.snapshot(), EndpointMap::load(&path).unwrap());
        assert_eq!(before.len(), 3, "an old snapshot stays as it was");

        std::fs::remove_file(&path).unwrap();
        assert!(matches!(shared.reload(), Err(EndpointMapError::Missing { .. })));
        assert_eq!(shared.snapshot().len(), 3);
    }

    #[test]
    fn a_fixed_map_reloads_to_itself() {
        let map = EndpointMap::parse("a:1=h:7", "map").unwrap();
        let shared = SharedEndpointMap::fixed(map.clone());
        assert_eq!(shared.path(), None);
        assert!(shared.reload().unwrap().is_empty());
        assert_eq!(*shared.snapshot(), map);
    }

    #[test]
    fn readers_see_one_map_or_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        std::fs::write(&path, "a:1=h:1\nb:1=h:1\n").unwrap();
        let shared = SharedEndpointMap::load(&path).unwrap();
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for _ in 0..1000 {
                    let map = shared.snapshot();
                    assert_eq!(map.resolve("a:1"), map.resolve("b:1"));
                }
            });
            start.wait();
            for port in 2..50 {
                std::fs::write(&path, format!("a:1=h:{port}\nb:1=h:{port}\n")).unwrap();
                shared.reload().unwrap();
            }
        });
    }
}
