// A service that calls an agent with Temporal's TypeScript SDK: bodies are plain JSON.
//
//     npm ci
//     npm start -- q-17

import { setTimeout as sleep } from 'node:timers/promises';
import {
  ApplicationFailure,
  Client,
  Connection,
  WorkflowExecutionAlreadyStartedError,
  WorkflowFailedError,
  WorkflowNotFoundError,
  WorkflowUpdateFailedError,
  type WorkflowHandle,
} from '@temporalio/client';

interface Status {
  outcome?: string;
  answer?: string;
  approvals: { id: string; status: string }[];
}

/** Start a run, or get the one that an earlier call has started. */
async function start(client: Client, run: string, request: object): Promise<WorkflowHandle> {
  try {
    await client.workflow.start('AgentRun', {
      args: [request],
      workflowId: run,
      taskQueue: process.env.TURNKEEPER_TASK_QUEUE ?? 'turnkeeper',
      workflowIdReusePolicy: 'REJECT_DUPLICATE',
      workflowIdConflictPolicy: 'FAIL',
    });
  } catch (error) {
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
    console.log(`${run}: was started before`);
  }
  return client.workflow.getHandle(run);
}

/** Whether the run has taken it, now or before; false if it has ended. */
async function tell(run: WorkflowHandle, update: string, body: object): Promise<boolean> {
  try {
    await run.executeUpdate(update, { args: [body] });
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false;
    const cause = error instanceof WorkflowUpdateFailedError ? error.cause : undefined;
    const refusal = cause instanceof ApplicationFailure ? cause.type : undefined;
    if (refusal === 'run_ended') return false;
    if (refusal !== 'duplicate_message') throw error;
  }
  return true;
}

/** Allow what waits for a person, until the run has ended. */
async function approve(run: WorkflowHandle): Promise<void> {
  for (;;) {
    const status = await run.query<Status>('status');
    if (status.outcome) return;
    for (const asked of status.approvals) {
      if (asked.status === 'waiting') {
        await tell(run, 'approve', { approval: asked.id, actor: 'ann' });
      }
    }
    await sleep(200);
  }
}

/** Say something, print the answer, end the conversation. */
async function converse(run: WorkflowHandle, key: string): Promise<void> {
  const body = { message_id: `${key}-1`, text: 'Hello?', actor: 'ann' };
  if (!(await tell(run, 'send', body))) return;
  let status = await run.query<Status>('status');
  while (!status.answer && !status.outcome) {
    await sleep(200);
    status = await run.query<Status>('status');
  }
  console.log(`${run.workflowId}: answer: ${status.answer}`);
  await tell(run, 'stop', { reason: 'that was all', actor: 'ann' });
}

/** Wait for the end of a run, and print how it ended. */
async function report(run: WorkflowHandle): Promise<void> {
  try {
    const result = await run.result();
    console.log(`${run.workflowId}: ${result.outcome}: ${result.answer}`);
  } catch (error) {
    const cause = error instanceof WorkflowFailedError ? error.cause : undefined;
    if (!(cause instanceof ApplicationFailure)) throw error; // cancelled, terminated
    // `cause.details?.[0]` is the result as far as it went.
    console.log(`${run.workflowId}: failed: ${cause.type}: ${cause.message}`);
  }
}

/** A refund that is allowed, a conversation that is stopped, a run that fails. */
async function main(key: string): Promise<void> {
  const address = process.env.TEMPORAL_ADDRESS ?? '127.0.0.1:7233';
  const connection = await Connection.connect({ address });
  try {
    const client = new Client({ connection });

    const refund = { agent: 'desk', prompt: 'Refund order 1007.', request_key: key };
    let run = await start(client, `refund-${key}`, refund);
    await approve(run);
    await report(run);

    const chat = { agent: 'desk', keep_open: true, request_key: key };
    run = await start(client, `chat-${key}`, chat);
    await converse(run, key);
    await report(run);

    const failing = { agent: 'nobody', prompt: 'Hello?', request_key: key };
    await report(await start(client, `nobody-${key}`, failing));
  } finally {
    await connection.close();
  }
}

const tooLong = (): never => {
  throw new Error('no end within two minutes');
};
setTimeout(tooLong, 120_000).unref();
await main(process.argv[2]);
