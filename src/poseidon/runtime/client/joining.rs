//! How a client comes into a cluster: asks the coordinator about the model, joins, sets its weights
//! and connects.
//!
//! Touches sockets and files. Invariant: it returns at once when it must stop.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::super::budget::Budget;
use super::super::checkpoint::{CheckpointFolder, SHARE};
use super::super::error::PoseidonError;
use super::super::join::{Joined, ask, join};
use super::super::link::{Incoming, Link};
use super::super::member::{MemberJob, identity, keep_common, receive_until_bye};
use super::super::model::hash;
use super::super::shutdown::Shutdown;
use super::hub::{Holding, Hub};
use super::peers::connect;
use super::turns::Turns;
use super::{Claims, Client, ClientJob, First, OwnReplica, Replica, Resumed};
use crate::poseidon::{
    Book, ClusterInfo, KvStore, Member, MemberHello, MemberRole, Plan, Pool, Scheme, Syncer,
};
use crate::weights::kernels;

/// See [`Client::join`].
pub(super) fn enter(
    job: ClientJob,
    memory: Option<Arc<dyn Replica>>,
    stop: Arc<AtomicBool>,
) -> Result<Option<Client>, PoseidonError> {
    let member = Member {
        role: MemberRole::Worker,
        index: job.member.index,
    };
    let budget = job.member.bandwidth()?.map(Budget::new);
    let folder = job.member.folder(member)?;
    let Some(claims) = complete(&job.member, &job.claims, &job.first, &stop)? else {
        return Ok(None);
    };
    let (checkpoints, replicas) = job.member.whole(folder.as_ref())?;
    let listener = job.member.listener()?;
    let hello = MemberHello {
        member,
        session: claims.session,
        fingerprint: claims.fingerprint,
        recipe: claims.recipe,
        weights: claims.weights,
        images: claims.images,
        data: job.claims.data.clone(),
        address: String::new(),
        checkpoints,
        replicas,
    };
    let Some(joined) = join(&job.member, hello, &listener, &stop)? else {
        return Ok(None);
    };
    let Joined {
        cluster,
        hello,
        link,
        incoming,
        who,
    } = joined;
    let replica = room(&cluster.plan, memory)?;
    let identity = identity(&cluster, hello.fingerprint);
    let resumed = begin(&cluster, &identity, folder.as_ref(), &job.first, &*replica)?;
    let holding = hold(&cluster, member, replica, resumed.as_ref())?;
    let hub = Hub::new(&cluster, member, holding, budget, Shutdown::shared(stop));
    let client = Client {
        turns: Turns::new(cluster.plan.layers.len(), cluster.start),
        hub: Arc::new(hub),
        book: cluster,
        folder,
        job: job.member,
        identity,
        resumed,
        closed: false,
    };
    match start(&client, incoming, who, link, &hello, listener) {
        Ok(()) => Ok(Some(client)),
        Err(error) => {
            client.abort(error);
            client.close().map(|_| None)
        }
    }
}

/// Connects to the other members, and starts the threads.
fn start(
    client: &Client,
    mut incoming: Incoming,
    coordinator: String,
    link: Link,
    hello: &MemberHello,
    listener: TcpListener,
) -> Result<(), PoseidonError> {
    let (hub, folder) = (&client.hub, client.folder.clone());
    hub.links.add_coordinator(link);
    hub.reading(move |hub| {
        receive_until_bye(&mut incoming, &coordinator, &hub.shutdown, |message| {
            keep_common(folder.as_ref(), &message);
            hub.on_coordinator_message(&message);
        });
    })?;
    for (member, incoming, who) in connect(&client.job, &client.book, hello, listener, hub)? {
        hub.reading(move |hub| hub.read(incoming, member, &who))?;
    }
    hub.start()
}

/// What a client says of itself.
struct Complete {
    session: u64,
    fingerprint: u64,
    recipe: String,
    images: u32,
    weights: u64,
}

/// Asks the coordinator for what the client does not claim.
fn complete(
    job: &MemberJob,
    claims: &Claims,
    first: &First,
    stop: &AtomicBool,
) -> Result<Option<Complete>, PoseidonError> {
    if let (
        Claims {
            session: Some(session),
            fingerprint: Some(fingerprint),
            recipe: Some(recipe),
            images: Some(images),
            ..
        },
        First::Given(weights),
    ) = (claims, first)
    {
        return Ok(Some(Complete {
            session: *session,
            fingerprint: *fingerprint,
            recipe: recipe.clone(),
            images: *images,
            weights: claims.weights.unwrap_or_else(|| hash_of(weights)),
        }));
    }
    let Some(book) = ask::<Book>(job, "model", stop)? else {
        return Ok(None);
    };
    let weights = match first {
        _ if claims.weights.is_some() => claims.weights.unwrap_or(0),
        First::Given(weights) => hash_of(weights),
        First::Zeros => hash_of(&vec![0.0; book.plan.extent()]),
        First::FromServers => {
            let held = |scheme| matches!(scheme, Scheme::Ps | Scheme::Adam);
            match book.plan.layers.iter().find(|l| !held(l.scheme)) {
                None => 0,
                Some(layer) => {
                    return Err(PoseidonError::FirstWeights {
                        layer: layer.name.clone(),
                        scheme: layer.scheme,
                    });
                }
            }
        }
    };
    Ok(Some(Complete {
        session: claims.session.unwrap_or(book.session),
        fingerprint: claims.fingerprint.unwrap_or(book.fingerprint),
        recipe: claims.recipe.clone().unwrap_or(book.plan.recipe),
        images: claims.images.unwrap_or(book.plan.images),
        weights,
    }))
}

fn hash_of(weights: &[f32]) -> u64 {
    let words: Vec<_> = weights
        .iter()
        .map(|w| AtomicU32::new(w.to_bits()))
        .collect();
    hash(&words)
}

/// The memory for a plan: what was given, if it is large enough, else this process's own.
fn room(plan: &Plan, memory: Option<Arc<dyn Replica>>) -> Result<Arc<dyn Replica>, PoseidonError> {
    let (extent, states) = (plan.extent(), plan.step.rule.states());
    let Some(memory) = memory else {
        return Ok(Arc::new(OwnReplica::new(extent, states)));
    };
    let short = |what, has, needs| Err(PoseidonError::Replica { what, has, needs });
    match (memory.weights().len(), memory.states()) {
        (has, _) if has < extent => short("weights", has, extent),
        (_, has) if has < states => short("numbers per weight", has, states),
        _ => Ok(memory),
    }
}

/// Syncers, and the worker's share, as they were at the checkpoint.
fn hold(
    cluster: &ClusterInfo,
    own: Member,
    replica: Arc<dyn Replica>,
    resumed: Option<&Resumed>,
) -> Result<Holding, PoseidonError> {
    let (plan, pool) = (&cluster.plan, Pool::default());
    let mut syncers: Vec<Syncer> = (0..plan.layers.len())
        .map(|layer| Syncer::new(plan, layer, own.index, cluster.start, &pool))
        .collect();
    let mut share = share(cluster, own, &*replica, &pool);
    if let Some(Resumed(saved)) = resumed {
        for syncer in &mut syncers {
            syncer.restore(|name, len| saved.array(name, len))?;
        }
        if let Some(share) = &mut share {
            share.restore(|name, len| saved.array(&format!("{SHARE}{name}"), len))?;
        }
    }
    Ok(Holding {
        pool,
        replica,
        syncers,
        share,
    })
}

/// What a worker holds of layers under `p2p`, if it holds any.
fn share(
    cluster: &ClusterInfo,
    own: Member,
    replica: &dyn Replica,
    pool: &Pool,
) -> Option<KvStore> {
    // The worker's own checkpoint has it, at the same steps.
    let plan = Plan {
        checkpoint_every: 0,
        ..cluster.plan.clone()
    };
    let mut pairs = plan.pairs().into_iter();
    let holds = pairs.any(|pair| pair.home == Some(own));
    holds.then(|| KvStore::new(&plan, own, cluster.start, replica.weights(), pool))
}

/// Sets the weights to those of the checkpoint that all members have, or to the first ones.
fn begin(
    cluster: &ClusterInfo,
    identity: &BTreeMap<String, String>,
    folder: Option<&CheckpointFolder>,
    first: &First,
    replica: &dyn Replica,
) -> Result<Option<Resumed>, PoseidonError> {
    // One that comes late begins with what the servers send it.
    let start = match cluster.late {
        true => 0,
        false => cluster.start,
    };
    if let (Some(folder), 1..) = (folder, start) {
        let resumed = Resumed(folder.load(start, identity)?);
        resumed.fill(&cluster.plan, replica)?;
        return Ok(Some(resumed));
    }
    let extent = cluster.plan.extent();
    let zeros = vec![0.0; extent];
    for which in 0..cluster.plan.step.rule.states() {
        kernels::copy_in(replica.state(which).slice(0, extent), &zeros);
    }
    match first {
        First::Given(weights) if weights.len() != extent => {
            let has = weights.len();
            return Err(PoseidonError::Misuse(format!(
                "{has} first weights, and the plan has {extent}"
            )));
        }
        First::Given(weights) => kernels::copy_in(replica.weights().slice(0, extent), weights),
        First::Zeros | First::FromServers => {
            kernels::copy_in(replica.weights().slice(0, extent), &zeros);
        }
    }
    Ok(None)
}
