//! Which node of which job this process is to run: what launchers say in the environment, and what
//! the user says over it.
//!
//! Pure: the environment is an argument. `docs/guide/cluster.md` has the table of variables.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Ports at which the nodes of a job meet, unless one is named.
const PORTS: std::ops::Range<u64> = 23_000..28_000;

/// What the user says.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// This node.
    pub rank: Option<u16>,
    /// All nodes.
    pub size: Option<u16>,
    /// Host of node 0, with or without the port at which it is to be met.
    pub join: Option<String>,
}

/// Who says which node it is, if no launcher does.
const BY_HAND: &str = "the command line";

/// One node of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// This node.
    pub rank: u16,
    /// All nodes.
    pub size: u16,
    /// Host of node 0.
    pub first: String,
    /// Where node 0 listens there.
    pub port: u16,
    /// What tells this job from others of the same file; the same on all nodes.
    pub job: String,
    /// Who says so: "Slurm", "flags", ...
    pub by: &'static str,
}

/// Where the nodes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// Host of node 0.
    pub first: String,
    /// Where node 0 listens there.
    pub port: u16,
}

/// What a node is told that joins a job without a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its number, behind those of the beginning.
    pub rank: u16,
    /// Nodes that the job began with.
    pub size: u16,
    /// What tells the job from others of the same file.
    pub job: String,
}

/// Why it is not known which node this is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// No launcher, and nothing said.
    #[error(
        "which node is this? Start it by srun, mpirun, torchrun or an indexed job of Kubernetes, or give --rank R \
         --size N --join HOST (the host of rank 0); --join HOST alone joins a job that runs"
    )]
    Nothing,
    /// One thing is missing.
    #[error("{by} says rank {rank}, but not {what}: give {flag}")]
    Missing {
        /// Who says the rest.
        by: &'static str,
        /// This node.
        rank: u16,
        /// What is not said.
        what: &'static str,
        /// How to say it.
        flag: &'static str,
    },
    /// A variable is not a number, or too large.
    #[error("{name}={value} is not a number from {least} to 64")]
    Number {
        /// The variable or flag.
        name: String,
        /// Its value.
        value: String,
        /// The least that it may be.
        least: u16,
    },
    /// The node is not one of them.
    #[error("rank {rank} of {size} nodes ({by}): ranks count from 0")]
    Rank {
        /// This node.
        rank: u16,
        /// All nodes.
        size: u16,
        /// Who says so.
        by: &'static str,
    },
    /// A batch script, and not a task of it.
    #[error(
        "this is a batch script of Slurm and none of its tasks: start it by srun, which starts one on each node"
    )]
    NotATask,
}

/// The most nodes of a job.
const MOST: u16 = 64;

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a launcher says.
struct Said {
    by: &'static str,
    rank: &'static str,
    size: Option<&'static str>,
    first: Option<String>,
    port: Option<u16>,
    /// Variables that name the job.
    job: &'static [&'static str],
}

impl World {
    /// Whether a launcher started this node, and not a person.
    pub fn is_launched(&self) -> bool {
        self.by != BY_HAND && !self.is_joined()
    }

    /// Where to join a job that runs: the user names its door and no rank, and no launcher does.
    ///
    /// # Errors
    /// See [`WorldError`].
    pub fn door(asked: &Asked, environment: Environment<'_>) -> Result<Option<Door>, WorldError> {
        let said = launcher(environment)?;
        let told = said.is_some() || asked.rank.is_some() || asked.size.is_some();
        Ok(asked.join.as_ref().filter(|_| !told).map(|join| {
            let (first, port) = split(join);
            let port = port.unwrap_or_else(|| port_of(&job_of(None, environment)));
            Door { first, port }
        }))
    }

    /// A node that joins a job at `door`, with what it was told there.
    pub fn joins(door: Door, seat: Seat) -> Self {
        Self {
            rank: seat.rank,
            size: seat.size,
            first: door.first,
            port: door.port,
            job: seat.job,
            by: "the job that it joins",
        }
    }

    /// What it was told where it joined.
    pub fn seat(&self) -> (Door, Seat) {
        let door = Door {
            first: self.first.clone(),
            port: self.port,
        };
        let seat = Seat {
            rank: self.rank,
            size: self.size,
            job: self.job.clone(),
        };
        (door, seat)
    }

    /// Whether it came to a job that others had begun.
    pub fn is_joined(&self) -> bool {
        self.rank >= self.size
    }

    /// Finds out.
    ///
    /// # Errors
    /// See [`WorldError`]; each says what to do.
    pub fn find(asked: &Asked, environment: Environment<'_>) -> Result<Self, WorldError> {
        let said = launcher(environment)?;
        let number = |name: &str, least| {
            let value = environment(name);
            value.map(|value| number(name, &value, least)).transpose()
        };
        let (by, launched_rank, launched_size) = match &said {
            Some(said) => {
                let size = said.size.map(|name| number(name, 1)).transpose()?;
                (said.by, number(said.rank, 0)?, size.flatten())
            }
            None => (BY_HAND, None, None),
        };
        let rank = asked.rank.or(launched_rank).ok_or(WorldError::Nothing)?;
        let missing = |what, flag| WorldError::Missing {
            by,
            rank,
            what,
            flag,
        };
        let size = asked.size.or(launched_size);
        let size = size.ok_or_else(|| missing("how many there are", "--size N"))?;
        if size == 0 || size > MOST {
            let (name, value) = ("--size".to_owned(), size.to_string());
            let least = 1;
            return Err(WorldError::Number { name, value, least });
        }
        if rank >= size {
            return Err(WorldError::Rank { rank, size, by });
        }
        let launched = said.as_ref().and_then(|said| said.first.clone());
        let alone = || (size == 1).then(|| "127.0.0.1".to_owned());
        let first = asked.join.clone().or(launched).or_else(alone);
        let first =
            first.ok_or_else(|| missing("where rank 0 is", "--join HOST, the host of rank 0"))?;
        let (first, own_port) = split(&first);
        let job = job_of(said.as_ref(), environment);
        let port = own_port.or(said.and_then(|said| said.port));
        Ok(Self {
            rank,
            size,
            first,
            port: port.unwrap_or_else(|| port_of(&job)),
            job,
            by,
        })
    }
}

/// What tells the job from others, in the words of its launcher.
fn job_of(said: Option<&Said>, environment: Environment<'_>) -> String {
    let names = said.map_or(&[][..], |said| said.job);
    let values = names.iter().filter_map(|name| environment(name));
    let values: Vec<String> = values.collect();
    format!("{} {}", said.map_or("", |said| said.by), values.join(" "))
}

/// The port of a job that names none.
fn port_of(job: &str) -> u16 {
    (PORTS.start + xxh3_64(job.as_bytes()) % (PORTS.end - PORTS.start)) as u16
}

fn number(name: &str, value: &str, least: u16) -> Result<u16, WorldError> {
    match value.trim().parse() {
        Ok(number) if (least..=MOST).contains(&number) => Ok(number),
        _ => Err(WorldError::Number {
            name: name.to_owned(),
            value: value.to_owned(),
            least,
        }),
    }
}

/// HOST:PORT or HOST.
fn split(text: &str) -> (String, Option<u16>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => match port.parse() {
            Ok(port) => (host.to_owned(), Some(port)),
            Err(_) => (text.to_owned(), None),
        },
        _ => (text.to_owned(), None),
    }
}

/// The launcher that started this process, the innermost if there are several.
fn launcher(environment: Environment<'_>) -> Result<Option<Said>, WorldError> {
    let has = |name: &str| environment(name).is_some();
    let master = || environment("MASTER_ADDR");
    // All processes on one host meet there.
    let here = |local: &str, size: &str| {
        let one_host = has(local) && environment(local) == environment(size);
        master().or_else(|| one_host.then(|| "127.0.0.1".to_owned()))
    };
    if has("RANK") && has("WORLD_SIZE") {
        // torchrun's own store listens at MASTER_PORT.
        let elastic = has("TORCHELASTIC_RUN_ID");
        let port = environment("MASTER_PORT").and_then(|port| port.parse().ok());
        return Ok(Some(Said {
            by: if elastic { "torchrun" } else { "RANK" },
            rank: "RANK",
            size: Some("WORLD_SIZE"),
            first: master(),
            port: port.filter(|_| !elastic),
            job: &["TORCHELASTIC_RUN_ID", "MASTER_PORT"],
        }));
    }
    if has("OMPI_COMM_WORLD_RANK") {
        return Ok(Some(Said {
            by: "Open MPI",
            rank: "OMPI_COMM_WORLD_RANK",
            size: Some("OMPI_COMM_WORLD_SIZE"),
            first: here("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
            port: None,
            job: &["PMIX_NAMESPACE"],
        }));
    }
    if has("PMI_RANK") {
        return Ok(Some(Said {
            by: "PMI",
            rank: "PMI_RANK",
            size: Some("PMI_SIZE"),
            first: here("MPI_LOCALNRANKS", "PMI_SIZE"),
            port: None,
            job: &["PMI_ID", "HYDI_CONTROL_FD"],
        }));
    }
    if has("SLURM_STEP_ID") && has("SLURM_PROCID") {
        let nodes = environment("SLURM_STEP_NODELIST").or_else(|| environment("SLURM_NODELIST"));
        return Ok(Some(Said {
            by: "Slurm",
            rank: "SLURM_PROCID",
            size: Some("SLURM_STEP_NUM_TASKS"),
            first: master().or_else(|| nodes.map(|nodes| first_of(&nodes))),
            port: None,
            job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        }));
    }
    if has("JOB_COMPLETION_INDEX") {
        return Ok(Some(Said {
            by: "Kubernetes",
            rank: "JOB_COMPLETION_INDEX",
            size: has("WORLD_SIZE").then_some("WORLD_SIZE"),
            first: master(),
            port: None,
            job: &["JOB_NAME", "MASTER_ADDR"],
        }));
    }
    if has("SLURM_JOB_ID") && has("SLURM_PROCID") {
        return Err(WorldError::NotATask);
    }
    Ok(None)
}

/// The first host of a list of Slurm's: `node[01-03,7],other` is `node01`.
fn first_of(list: &str) -> String {
    let Some((before, rest)) = list.split_once('[') else {
        return list.split(',').next().unwrap_or_default().to_owned();
    };
    if let Some((first, _)) = before.split_once(',') {
        return first.to_owned();
    }
    let (numbers, after) = rest.split_once(']').unwrap_or((rest, ""));
    let number = numbers.split([',', '-']).next().unwrap_or_default();
    let after = first_of(after.split(',').next().unwrap_or_default());
    format!("{before}{number}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(asked: &Asked, variables: &[(&str, &str)]) -> Result<World, String> {
        let environment = |name: &str| {
            let mut all = variables.iter();
            let found = all.find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        World::find(asked, &environment).map_err(|error| error.to_string())
    }

    const SLURM: &[(&str, &str)] = &[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "n[03-05,9],m1"),
    ];

    #[test]
    fn launchers_say_who_this_is() {
        let none = Asked::default();
        let slurm = find(&none, SLURM).expect("a task");
        let place = |world: &World| (world.by, world.rank, world.size, world.first.clone());
        assert_eq!(place(&slurm), ("Slurm", 2, 4, "n03".into()));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "1234"),
        ];
        // mpirun inside of srun.
        let inner = find(&none, &[&mpi[..], SLURM].concat()).expect("a process");
        assert_eq!(place(&inner), ("Open MPI", 1, 2, "127.0.0.1".into()));
        let torch = [
            ("RANK", "0"),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "29500"),
        ];
        let by_hand = find(&none, &torch).expect("a process");
        assert_eq!(place(&by_hand), ("RANK", 0, 3, "10.0.0.7".into()));
        assert_eq!(by_hand.port, 29_500);
        let run = [&torch[..], &[("TORCHELASTIC_RUN_ID", "r")]].concat();
        let run = find(&none, &run).expect("a process");
        assert!(run.by == "torchrun" && run.port != 29_500, "{run:?}");
        let pod = [("JOB_COMPLETION_INDEX", "1"), ("MASTER_ADDR", "job-0.svc")];
        let asked = Asked {
            size: Some(2),
            ..Asked::default()
        };
        let pod = find(&asked, &pod).expect("a pod");
        assert_eq!(place(&pod), ("Kubernetes", 1, 2, "job-0.svc".into()));
    }

    #[test]
    fn flags_say_over_launchers() {
        let asked = Asked {
            rank: Some(1),
            size: Some(2),
            join: Some("host:7000".into()),
        };
        for variables in [&[][..], SLURM] {
            let world = find(&asked, variables).expect("all is said");
            assert_eq!((world.rank, world.size, world.port), (1, 2, 7000));
            assert_eq!(world.first, "host");
        }
        // Two jobs of one machine meet at two ports.
        let again = |id| {
            let other = [&[("SLURM_JOB_ID", id)], SLURM].concat();
            find(&Asked::default(), &other).expect("a task")
        };
        assert_ne!(again("7").port, again("8").port);
        assert_eq!(again("7"), again("7"));
    }

    #[test]
    fn a_door_alone_is_that_of_a_job_that_runs() {
        let door = |asked: &Asked, variables: &[(&str, &str)]| {
            let environment = |name: &str| {
                let found = variables.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            World::door(asked, &environment).expect("no batch script")
        };
        let mut asked = Asked {
            join: Some("host".into()),
            ..Asked::default()
        };
        let found = door(&asked, &[]).expect("a door");
        // Nodes that were started by hand, with ranks, meet there.
        let ranked = Asked {
            rank: Some(0),
            size: Some(2),
            ..asked.clone()
        };
        let zero = find(&ranked, &[]).expect("all is said");
        assert_eq!((&found.first, found.port), (&zero.first, zero.port));
        assert_eq!(door(&asked, SLURM), None, "a launcher says who it is");
        assert_eq!(door(&ranked, &[]), None);
        asked.join = Some("host:7000".into());
        let found = door(&asked, &[]).expect("a door");
        assert_eq!((found.first.as_str(), found.port), ("host", 7000));
        let seat = Seat {
            rank: 2,
            size: 2,
            job: zero.job,
        };
        let joined = World::joins(found, seat);
        assert!(joined.is_joined() && !joined.is_launched());
    }

    #[test]
    fn what_is_missing_is_named() {
        let none = Asked::default();
        let without = |name: &str| -> Vec<(&str, &str)> {
            let all = SLURM.iter().copied();
            all.filter(|(own, _)| *own != name).collect()
        };
        let with = |name, value| [&[(name, value)], SLURM].concat();
        for (variables, part) in [
            (vec![], "srun, mpirun, torchrun"),
            (without("SLURM_STEP_NUM_TASKS"), "--size N"),
            (without("SLURM_STEP_NODELIST"), "--join HOST"),
            (without("SLURM_STEP_ID"), "start it by srun"),
            (with("SLURM_PROCID", "x"), "SLURM_PROCID=x is not a number"),
            (with("SLURM_PROCID", "4"), "rank 4 of 4 nodes (Slurm)"),
            (
                with("SLURM_STEP_NUM_TASKS", "65"),
                "SLURM_STEP_NUM_TASKS=65",
            ),
            (vec![("RANK", "0"), ("WORLD_SIZE", "2")], "where rank 0 is"),
            (vec![("JOB_COMPLETION_INDEX", "0")], "--size N"),
        ] {
            let said = find(&none, &variables).expect_err(part);
            assert!(said.contains(part), "{part} is not in {said}");
        }
        let size = |size| Asked {
            rank: Some(0),
            size: Some(size),
            join: None,
        };
        assert!(find(&size(0), &[]).is_err() && find(&size(65), &[]).is_err());
        assert_eq!(find(&size(1), &[]).expect("alone").first, "127.0.0.1");
    }

    #[test]
    fn lists_of_hosts_begin_with_the_first() {
        for (list, first) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("n[1-3]", "n1"),
            ("n[01,05]", "n01"),
            ("a,n[1-3]", "a"),
            ("rack[2-3]n[07-09].local,x", "rack2n07.local"),
        ] {
            assert_eq!(first_of(list), first, "{list}");
        }
    }
}
