// A page of jobs that match. The API pages by time alone, so a filter walks on until a page is full.

const PAGE = 50;
const WALK = 500; // jobs a request of a filter brings
const MOST_REQUESTS = 8; // of one page: who wants more turns the page

/** {jobs, next, looked}: up to a page of jobs that match `text` (in id or tenant) and `state`, and how many were looked at. */
export async function find(api, { text, state }, cursor, signal) {
  if (!text && !state) {
    const { jobs, next } = await api.jobs(PAGE, cursor, signal);
    return { jobs, next, looked: jobs.length };
  }
  const found = [];
  let looked = 0;
  let from = cursor;
  for (let request = 0; request < MOST_REQUESTS; request += 1) {
    const { jobs, next } = await api.jobs(WALK, from, signal);
    for (const job of jobs) {
      looked += 1;
      if (matches(job, text, state)) found.push(job);
      if (found.length === PAGE) return { jobs: found, next: job.id === jobs.at(-1).id ? next : job.id, looked };
    }
    from = next;
    if (from === null) break;
  }
  return { jobs: found, next: from, looked };
}

/** Whether the job is one that is looked for; `text` is in lower case. */
export function matches(job, text, state) {
  const words = `${job.id} ${job.name} ${job.tenant}`.toLowerCase();
  return words.includes(text) && (!state || job.state === state);
}
