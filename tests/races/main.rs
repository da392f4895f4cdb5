//! The structures of the lease that several tasks share, under a scheduler that tries out the orders
//! in which threads can run (shuttle). The files are those of `src/lease`, compiled a second time
//! with the scheduler's locks; futures are dropped after every number of polls.
//!
//! A failure prints its schedule, which `shuttle::replay` runs again.

#![allow(dead_code, reason = "the scheduler needs a part of what the lease needs")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod sync {
    pub(super) use shuttle::sync::{Arc, Mutex};
}
#[path = "../../src/lease/waiters.rs"]
mod waiters;
#[path = "../../src/lease/watchlist.rs"]
mod watchlist;

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use shuttle::sync::{Arc, Mutex};
use shuttle::{future, thread};

use waiters::{Waiter, Waiters};
use watchlist::Watchlist;

/// Orders that are tried. Each finds what one of a few hundred would.
const ORDERS: usize = 5_000;

/// A lease as Redis has it: free, or not. Whoever frees it tells.
#[derive(Default)]
struct Lease {
    held: Mutex<bool>,
}

impl Lease {
    fn take(&self) -> bool {
        let mut held = self.held.lock().unwrap();
        !std::mem::replace(&mut *held, true)
    }

    fn release(&self, waiters: &Waiters) {
        *self.held.lock().unwrap() = false;
        waiters.wake("sale", "ada");
    }
}

/// As `Leases::acquire`; the first `looks` times it tries by itself after two polls of its sleep. After
/// these, a wake-up that is lost is a thread that sleeps for ever, which the scheduler reports.
async fn acquire(lease: &Lease, waiters: &Waiters, looks: usize) {
    if lease.take() {
        return;
    }
    let mut waiter: Waiter = waiters.enter("sale", "ada");
    let mut left = looks;
    while !lease.take() {
        if left == 0 {
            waiter.woken().await;
            continue;
        }
        left -= 1;
        let slept = {
            let mut polled = false;
            let mut woken = pin!(waiter.woken());
            std::future::poll_fn(|context: &mut Context<'_>| match woken.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending if polled => Poll::Ready(false),
                Poll::Pending => {
                    polled = true;
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await
        };
        if !slept {
            waiter.wakes_by_itself();
        }
    }
    waiter.satisfied();
}

/// Polls the acquisition so often, and drops it. Answers whether it has the lease.
async fn acquire_for(polls: usize, lease: &Lease, waiters: &Waiters) -> bool {
    let mut acquiring = pin!(acquire(lease, waiters, 0));
    let mut left = polls;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match acquiring.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Four threads want one lease, each in its own way; whoever gets it gives it back.
fn rush(wants: impl Fn(usize, &Lease, &Waiters) -> bool + Copy + Send + Sync + 'static) {
    shuttle::check_random(
        move || {
            let (lease, waiters) = (Arc::new(Lease::default()), Waiters::default());
            let tasks: Vec<_> = (0..4)
                .map(|nth| {
                    let (lease, waiters) = (lease.clone(), waiters.clone());
                    thread::spawn(move || {
                        if wants(nth, &lease, &waiters) {
                            thread::yield_now();
                            lease.release(&waiters);
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            assert!(waiters.scopes().is_empty() && waiters.len() == 0, "somebody is left in line");
        },
        ORDERS,
    );
}

fn gets_it(lease: &Lease, waiters: &Waiters, looks: usize) -> bool {
    future::block_on(acquire(lease, waiters, looks));
    true
}

#[test]
fn every_waiter_gets_the_lease_in_any_schedule() {
    rush(|_, lease, waiters| gets_it(lease, waiters, 0));
}

#[test]
fn a_polling_waiter_loses_no_wake_up() {
    for looks in 1..3 {
        rush(move |nth, lease, waiters| gets_it(lease, waiters, if nth % 2 == 0 { looks } else { 0 }));
    }
}

/// Two of the four give up after some polls: what woke them must reach those who stay.
#[test]
fn a_waiter_that_leaves_passes_its_wake_up_on() {
    for polls in 0..4 {
        rush(move |nth, lease, waiters| match nth % 2 {
            0 => future::block_on(acquire_for(polls, lease, waiters)),
            _ => gets_it(lease, waiters, 0),
        });
    }
}

/// The watchdog has leases in hand while they are released: what has left stays away.
#[test]
fn a_lease_that_left_the_watchlist_never_comes_back() {
    shuttle::check_random(
        || {
            let list: Arc<Watchlist<Mutex<bool>>> = Arc::new(Watchlist::default());
            let begin = Instant::now();
            let watchdog = {
                let list = list.clone();
                thread::spawn(move || {
                    for round in 0..3 {
                        let now = begin + Duration::from_secs(round);
                        for (place, released) in list.take_due(now) {
                            thread::yield_now();
                            // The renewal is answered.
                            let again = list.again(place, now + Duration::from_millis(1));
                            assert!(
                                again || *released.lock().unwrap(),
                                "what nobody released is off the list"
                            );
                        }
                    }
                })
            };
            let holders: Vec<_> = (0..3)
                .map(|nth| {
                    let list = list.clone();
                    thread::spawn(move || {
                        let released = Arc::new(Mutex::new(false));
                        let (place, _) = list.enter(released.clone(), begin + Duration::from_millis(nth));
                        thread::yield_now();
                        *released.lock().unwrap() = true;
                        assert!(list.leave(place));
                        assert!(!list.again(place, begin) && !list.leave(place));
                    })
                })
                .collect();
            holders.into_iter().for_each(|holder| holder.join().unwrap());
            watchdog.join().unwrap();
            assert_eq!(list.len(), 0);
            assert_eq!(list.next(), None);
            assert!(list.take_due(begin + Duration::from_secs(3_600)).is_empty());
        },
        ORDERS,
    );
}

/// Nothing that is due is missed, whatever is entered and renewed meanwhile.
#[test]
fn a_due_lease_is_taken_from_the_watchlist_once() {
    shuttle::check_random(
        || {
            let list: Arc<Watchlist<()>> = Arc::new(Watchlist::default());
            let begin = Instant::now();
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let list = list.clone();
                    thread::spawn(move || {
                        let mut places = Vec::new();
                        for _ in 0..3 {
                            places.extend(list.take_due(begin).into_iter().map(|(place, _)| place));
                            thread::yield_now();
                        }
                        places
                    })
                })
                .collect();
            let entered: Vec<_> = (0..3)
                .map(|_| {
                    let (place, _) = list.enter(Arc::new(()), begin);
                    place
                })
                .collect();
            let mut taken: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
            taken.extend(list.take_due(begin).into_iter().map(|(place, _)| place));
            taken.sort_unstable();
            assert_eq!(taken, entered);
        },
        ORDERS,
    );
}
