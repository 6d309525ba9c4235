// Client and worker for geartrain, a job queue. No dependencies.

export * from './client.js'
export * from './worker.js'
